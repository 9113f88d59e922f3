"""Functions that are called in the vector library that torch ships."""

from __future__ import annotations

from tofuse.backends.cpu.llvm.ir_text import FunctionBuilder, vector_type
from tofuse.backends.cpu.llvm.vector_math.formula_builder import (
    definition,
    function_body,
    math_symbol,
)

PREFIX = "Sleef_"


def library_symbols(name: str, native: int) -> tuple[str, str]:
    """Return the library's symbols of a function over whole registers of floats and of doubles."""
    stem, precision, _ = LIBRARY[name]
    return f"{PREFIX}{stem}f{native}{precision}", f"{PREFIX}{stem}d{native // 2}{precision}"


def library_definition(name: str, elem: str, width: int, native: int) -> dict[str, str]:
    """Return the texts, by symbol, of a function over `width` lanes.

    Registers have `native` float lanes.
    """
    single = elem == "f32"
    scalar, lanes = ("float", native) if single else ("double", native // 2)
    symbol = library_symbols(name, native)[0 if single else 1]
    whole, ty = f"<{lanes} x {scalar}>", vector_type(scalar, width)
    arguments, f, results = ("%x", "%y")[: LIBRARY[name][2]], function_body(), []
    for first in range(0, width, lanes):
        registers = [_register_part(f, x, scalar, width, first, lanes) for x in arguments]
        typed = ", ".join(f"{whole} {p}" for p in registers)
        results.append(f.let(f"call {whole} @{symbol}({typed})"))
    own = math_symbol(name, elem, width)
    library_types = ", ".join([whole] * len(arguments))
    pure = "nounwind willreturn memory(none)"
    return {
        symbol: f"declare {whole} @{symbol}({library_types}) {pure}",
        own: definition(f, own, ty, arguments, _concat(f, results, scalar, width, lanes)),
    }


def _register_part(
    f: FunctionBuilder, x: str, scalar: str, width: int, first: int, lanes: int
) -> str:
    """Return `lanes` lanes of `x` from `first` on; lanes after the end repeat others."""
    if width == lanes:
        return x
    if width == 1:
        x = f.let(f"insertelement <1 x {scalar}> poison, {scalar} {x}, i64 0")
    return f.shuffle(f"<{width} x {scalar}>", x, x, [(first + k) % width for k in range(lanes)])


def _concat(f: FunctionBuilder, results: list[str], scalar: str, width: int, lanes: int) -> str:
    """Return the first `width` lanes of the results."""
    while len(results) > 1:
        ty, pairs = f"<{lanes} x {scalar}>", zip(results[::2], results[1::2], strict=True)
        lanes *= 2
        results = [f.shuffle(ty, a, b, range(lanes)) for a, b in pairs]
    (whole,), ty = results, f"<{lanes} x {scalar}>"
    if width == 1:
        return f.let(f"extractelement {ty} {whole}, i64 0")
    return f.shuffle(ty, whole, whole, range(width)) if width < lanes else whole


# name in the library, suffix of its precision (tenths of an ulp), number of operands
LIBRARY = {
    "lgamma": ("lgamma", "_u10", 1),
    "hypot": ("hypot", "_u05", 2),
}
