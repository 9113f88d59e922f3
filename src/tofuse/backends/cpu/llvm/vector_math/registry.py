"""The registry of the vector math functions: their formulas, error bounds, symbols and IR text."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tofuse.backends.cpu.llvm.vector_math import (
    error_function,
    exponential,
    inverse_trigonometric,
    logarithm,
    power,
    remainder,
    trigonometric,
)
from tofuse.backends.cpu.llvm.vector_math.formula_builder import (
    SCALARS,
    FormulaBuilder,
    Value,
    definition,
    function_body,
    math_symbol,
)


@dataclass(frozen=True)
class MathSpec:
    """A function's formula, its number of operands, and bounds on its error.

    An error is the distance from the exact value in units in the last place of that value. A bound
    of 2.5 means at most 2 from the correctly rounded result.
    """

    formula: Callable[..., Value]
    arity: int
    ulp_f32: float
    ulp_f64: float


def math_definitions(
    functions_needed: Iterable[tuple[str, str]], width: int, avx512: bool = False
) -> dict[str, str]:
    """Return the texts of functions, given as (name, elem) pairs, and of what they need, by symbol.

    The order of the dict is valid for a module. Two such dicts may be merged: a symbol has one
    text.
    """
    needed: dict[str, str] = {}
    functions: dict[str, str] = {}
    for name, elem in functions_needed:
        f, symbol, scalar = function_body(), math_symbol(name, elem, width), SCALARS[elem]
        b, arguments = FormulaBuilder(f, width, avx512), ("%x", "%y")[: MATH[name].arity]
        result = MATH[name].formula(b, *(b.value(x, scalar) for x in arguments))
        functions[symbol] = definition(f, symbol, b.type(scalar), arguments, result.text)
        needed.update(f.declarations)
    return needed | functions


MATH = {
    "exp": MathSpec(exponential.exp, 1, 1.0, 1.0),
    "exp2": MathSpec(exponential.exp2, 1, 1.0, 1.0),
    "expm1": MathSpec(exponential.expm1, 1, 2.0, 2.0),
    "sinh": MathSpec(exponential.sinh, 1, 2.5, 2.5),
    "cosh": MathSpec(exponential.cosh, 1, 1.5, 1.5),
    "tanh": MathSpec(exponential.tanh, 1, 2.5, 2.5),
    "sigmoid": MathSpec(exponential.sigmoid, 1, 2.5, 2.5),
    "log": MathSpec(logarithm.log, 1, 1.0, 1.0),
    "log2": MathSpec(logarithm.log2, 1, 1.0, 1.0),
    "log10": MathSpec(logarithm.log10, 1, 1.0, 1.0),
    "log1p": MathSpec(logarithm.log1p, 1, 1.5, 1.0),
    "sin": MathSpec(trigonometric.sin, 1, 2.0, 1.5),
    "cos": MathSpec(trigonometric.cos, 1, 2.0, 1.5),
    "tan": MathSpec(trigonometric.tan, 1, 2.5, 2.0),
    "asinh": MathSpec(logarithm.asinh, 1, 2.0, 1.5),
    "acosh": MathSpec(logarithm.acosh, 1, 2.0, 1.5),
    "atanh": MathSpec(logarithm.atanh, 1, 2.0, 2.0),
    "asin": MathSpec(inverse_trigonometric.asin, 1, 2.5, 2.0),
    "acos": MathSpec(inverse_trigonometric.acos, 1, 1.5, 1.0),
    "atan": MathSpec(inverse_trigonometric.atan, 1, 2.5, 2.0),
    "atan2": MathSpec(inverse_trigonometric.atan2, 2, 2.5, 2.0),
    "erf": MathSpec(error_function.erf, 1, 2.5, 1.5),
    "erfc": MathSpec(error_function.erfc, 1, 1.0, 4.0),
    "rsqrt": MathSpec(power.rsqrt, 1, 1.5, 1.5),
    "pow": MathSpec(power.pow, 2, 1.0, 1.0),
    "fmod": MathSpec(remainder.fmod, 2, 0.0, 0.0),
}
