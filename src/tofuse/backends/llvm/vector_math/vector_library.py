"""Rare functions that are not inlined: calls into the vector library that torch ships."""

from __future__ import annotations

from itertools import pairwise

PREFIX = "Sleef_"


def library_symbols(name: str, native: int) -> tuple[str, str]:
    """What the library calls a function over whole registers of floats, and of doubles."""
    stem, precision, _ = LIBRARY[name]
    return f"{PREFIX}{stem}f{native}{precision}", f"{PREFIX}{stem}d{native // 2}{precision}"


def library_definition(name: str, elem: str, width: int, native: int) -> dict[str, str]:
    """Symbol to text: the function over `width` lanes, in registers of `native` float lanes."""
    single = elem == "f32"
    scalar, lanes = ("float", native) if single else ("double", native // 2)
    symbol = library_symbols(name, native)[0 if single else 1]
    whole, kind = f"<{lanes} x {scalar}>", _kind(scalar, width)
    arguments = ("%x", "%y")[: LIBRARY[name][2]]
    b = _Lines()
    parts = []
    for first in range(0, width, lanes):
        pieces = [b.piece(x, scalar, width, first, lanes) for x in arguments]
        typed = ", ".join(f"{whole} {p}" for p in pieces)
        parts.append(b.let(f"call {whole} @{symbol}({typed})"))
    result = b.joined(parts, scalar, width, lanes)
    lanes_of = "" if width == 1 else f"v{width}"
    own = f"@tofuse.{name}.{lanes_of}{elem}"
    head = f"define internal {kind} {own}({', '.join(f'{kind} {x}' for x in arguments)})"
    body = "\n".join(b.lines)
    takes = ", ".join([whole] * len(arguments))
    pure = "nounwind willreturn memory(none)"
    return {
        symbol: f"declare {whole} @{symbol}({takes}) {pure}",
        own: f"{head} alwaysinline nounwind {{\nentry:\n{body}\n  ret {kind} {result}\n}}\n",
    }


class _Lines:
    """The text of a function's body."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def let(self, right: str) -> str:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"  {name} = {right}")
        return name

    def piece(self, x: str, scalar: str, width: int, first: int, lanes: int) -> str:
        """Lanes of `x` from `first` on as a whole register; what is over repeats lanes."""
        if width == lanes:
            return x
        if width == 1:
            x, width = self.let(f"insertelement <1 x {scalar}> poison, {scalar} {x}, i64 0"), 1
        return self.shuffle((x, x), scalar, width, [(first + k) % width for k in range(lanes)])

    def shuffle(self, pair: tuple[str, str], scalar: str, width: int, order: list[int]) -> str:
        mask = ", ".join(f"i32 {k}" for k in order)
        kind = f"<{width} x {scalar}>"
        a, b = pair
        return self.let(f"shufflevector {kind} {a}, {kind} {b}, <{len(order)} x i32> <{mask}>")

    def joined(self, parts: list[str], scalar: str, width: int, lanes: int) -> str:
        """The first `width` lanes of the parts."""
        while len(parts) > 1:
            both = range(2 * lanes)
            pairs = list(pairwise(parts))[::2]
            parts, lanes = [self.shuffle(p, scalar, lanes, [*both]) for p in pairs], 2 * lanes
        if width == 1:
            return self.let(f"extractelement <{lanes} x {scalar}> {parts[0]}, i64 0")
        if width < lanes:
            return self.shuffle((parts[0], parts[0]), scalar, lanes, [*range(width)])
        return parts[0]


def _kind(scalar: str, width: int) -> str:
    return scalar if width == 1 else f"<{width} x {scalar}>"


# the library's name, its precision (tenths of an ulp, as in its names), and the number of operands
LIBRARY = {
    "lgamma": ("lgamma", "_u10", 1),
    "hypot": ("hypot", "_u05", 2),
}
