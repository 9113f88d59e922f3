"""Functions that are called in the vector library that torch ships."""

from __future__ import annotations

from itertools import pairwise

from tofuse.backends.llvm.ir_text import vector_type

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
    arguments = ("%x", "%y")[: LIBRARY[name][2]]
    b = _BodyBuilder()
    results = []
    for first in range(0, width, lanes):
        registers = [b.register_part(x, scalar, width, first, lanes) for x in arguments]
        typed = ", ".join(f"{whole} {p}" for p in registers)
        results.append(b.let(f"call {whole} @{symbol}({typed})"))
    result = b.concat(results, scalar, width, lanes)
    lane_suffix = "" if width == 1 else f"v{width}"
    definition = f"@tofuse.{name}.{lane_suffix}{elem}"
    parameters = ", ".join(f"{ty} {x}" for x in arguments)
    head = f"define internal {ty} {definition}({parameters}) alwaysinline nounwind"
    body = "\n".join(b.lines)
    library_types = ", ".join([whole] * len(arguments))
    pure = "nounwind willreturn memory(none)"
    return {
        symbol: f"declare {whole} @{symbol}({library_types}) {pure}",
        definition: f"{head} {{\nentry:\n{body}\n  ret {ty} {result}\n}}\n",
    }


class _BodyBuilder:
    """Collects the text of a function's body."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def let(self, right: str) -> str:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"  {name} = {right}")
        return name

    def register_part(self, x: str, scalar: str, width: int, first: int, lanes: int) -> str:
        """Return `lanes` lanes of `x` from `first` on; lanes after the end repeat others."""
        if width == lanes:
            return x
        if width == 1:
            x, width = self.let(f"insertelement <1 x {scalar}> poison, {scalar} {x}, i64 0"), 1
        return self.shuffle((x, x), scalar, width, [(first + k) % width for k in range(lanes)])

    def shuffle(self, pair: tuple[str, str], scalar: str, width: int, order: list[int]) -> str:
        mask = ", ".join(f"i32 {k}" for k in order)
        ty = f"<{width} x {scalar}>"
        a, b = pair
        return self.let(f"shufflevector {ty} {a}, {ty} {b}, <{len(order)} x i32> <{mask}>")

    def concat(self, results: list[str], scalar: str, width: int, lanes: int) -> str:
        """Return the first `width` lanes of the results."""
        while len(results) > 1:
            both = range(2 * lanes)
            pairs = list(pairwise(results))[::2]
            results, lanes = [self.shuffle(p, scalar, lanes, [*both]) for p in pairs], 2 * lanes
        if width == 1:
            return self.let(f"extractelement <{lanes} x {scalar}> {results[0]}, i64 0")
        if width < lanes:
            return self.shuffle((results[0], results[0]), scalar, lanes, [*range(width)])
        return results[0]


# name in the library, suffix of its precision (tenths of an ulp), number of operands
LIBRARY = {
    "lgamma": ("lgamma", "_u10", 1),
    "hypot": ("hypot", "_u05", 2),
}
