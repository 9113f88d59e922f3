"""The registry of the vector math functions: their formulas, error bounds, symbols and IR text."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tofuse.backends.llvm.vector_math import (
    error_function,
    exponential,
    inverse_trigonometric,
    logarithm,
    power,
    remainder,
    trigonometric,
)
from tofuse.backends.llvm.vector_math.formula_builder import FORMATS, FormulaBuilder, Value


@dataclass(frozen=True)
class MathSpec:
    """A function, its number of operands, and bounds on its error.

    An error is the distance from the exact value in units in the last place of that value. A bound
    of 2.5 means at most 2 from the correctly rounded result.
    """

    name: str
    arity: int
    ulp_f32: float
    ulp_f64: float


def math_symbol(name: str, elem: str, width: int) -> str:
    """Return the symbol of a function over `width` lanes."""
    lanes = "" if width == 1 else f"v{width}"
    return f"@tofuse.{name}.{lanes}{elem}"


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
        builder = FormulaBuilder(width, avx512)
        functions[math_symbol(name, elem, width)] = _define(builder, name, elem)
        needed.update(builder.globals)
    return needed | functions


def _define(b: FormulaBuilder, name: str, elem: str) -> str:
    scalar = FORMATS[elem].scalar
    ty = b.type(scalar)
    names = ("%x", "%y")[: MATH[name].arity]
    result = FORMULAS[name](b, *(b.value(n, scalar) for n in names))
    head = f"define internal {ty} {math_symbol(name, elem, b.width)}"
    parameters = ", ".join(f"{ty} {n}" for n in names)
    body = "\n".join(b.lines)
    return (
        f"{head}({parameters}) alwaysinline nounwind {{\nentry:\n{body}\n  ret {result.typed}\n}}\n"
    )


FORMULAS: dict[str, Callable[..., Value]] = {
    "exp": exponential.exp,
    "exp2": exponential.exp2,
    "expm1": exponential.expm1,
    "sinh": exponential.sinh,
    "cosh": exponential.cosh,
    "tanh": exponential.tanh,
    "sigmoid": exponential.sigmoid,
    "log": logarithm.log,
    "log2": logarithm.log2,
    "log10": logarithm.log10,
    "log1p": logarithm.log1p,
    "sin": trigonometric.sin,
    "cos": trigonometric.cos,
    "tan": trigonometric.tan,
    "asinh": logarithm.asinh,
    "acosh": logarithm.acosh,
    "atanh": logarithm.atanh,
    "asin": inverse_trigonometric.asin,
    "acos": inverse_trigonometric.acos,
    "atan": inverse_trigonometric.atan,
    "atan2": inverse_trigonometric.atan2,
    "erf": error_function.erf,
    "erfc": error_function.erfc,
    "rsqrt": power.rsqrt,
    "pow": power.pow,
    "fmod": remainder.fmod,
}
MATH = {
    spec.name: spec
    for spec in (
        MathSpec("exp", 1, 1.0, 1.0),
        MathSpec("exp2", 1, 1.0, 1.0),
        MathSpec("expm1", 1, 2.0, 2.0),
        MathSpec("sinh", 1, 2.5, 2.5),
        MathSpec("cosh", 1, 1.5, 1.5),
        MathSpec("tanh", 1, 2.5, 2.5),
        MathSpec("sigmoid", 1, 2.5, 2.5),
        MathSpec("log", 1, 1.0, 1.0),
        MathSpec("log2", 1, 1.0, 1.0),
        MathSpec("log10", 1, 1.0, 1.0),
        MathSpec("log1p", 1, 1.5, 1.0),
        MathSpec("sin", 1, 2.0, 1.5),
        MathSpec("cos", 1, 2.0, 1.5),
        MathSpec("tan", 1, 2.5, 2.0),
        MathSpec("asinh", 1, 2.0, 1.5),
        MathSpec("acosh", 1, 2.0, 1.5),
        MathSpec("atanh", 1, 2.0, 2.0),
        MathSpec("asin", 1, 2.5, 2.0),
        MathSpec("acos", 1, 1.5, 1.0),
        MathSpec("atan", 1, 2.5, 2.0),
        MathSpec("atan2", 2, 2.5, 2.0),
        MathSpec("erf", 1, 2.5, 1.5),
        MathSpec("erfc", 1, 1.0, 4.0),
        MathSpec("rsqrt", 1, 1.5, 1.5),
        MathSpec("pow", 2, 1.0, 1.0),
        MathSpec("fmod", 2, 0.0, 0.0),
    )
}
