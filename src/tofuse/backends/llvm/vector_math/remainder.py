"""The remainder of a division that is cut off at the point: C's `fmod`, exactly.

With q = trunc(x / y), x - q y is less than y and a multiple of the last place of the smaller of the
two, so a number of the format, which one multiply-add gives. A quotient below `LIMIT` that is just
below an integer may be rounded to it: then x - q y is negative, and y too little. All else (such as
a quotient that is larger) is left to the C library, under a branch.
"""

from __future__ import annotations

from tofuse.backends.llvm.vector_math.formula_builder import Builder, Value

LIMIT = {"float": 2.0**22, "double": 2.0**51}


def fmod(b: Builder, x: Value, y: Value) -> Value:
    """x - trunc(x / y) y, with the sign of x."""
    size, divisor = b.abs(x), b.abs(y)
    quotient = size / divisor
    rest = b.fma(-b.intrinsic("trunc", quotient), divisor, size)
    rest = b.select(rest < 0.0, rest + divisor, rest)
    rest = b.copysign(b.select(size < divisor, size, rest), x)  # inf times 0 is no number
    far = b.compare("uge", quotient, LIMIT[x.scalar])
    return b.rarely(far, (rest,), lambda: (_of_library(b, x, y),))[0]


def _of_library(b: Builder, x: Value, y: Value) -> Value:
    """Lane by lane, in a function of its own: it is long."""
    kind = b.type(x.scalar)
    symbol = f"@tofuse.frem.{b.suffix(x.scalar)}"
    head = f"define internal {kind} {symbol}({kind} %x, {kind} %y) noinline nounwind"
    b.globals[symbol] = f"{head} {{\n  %r = frem {kind} %x, %y\n  ret {kind} %r\n}}\n"
    return b.emit(f"call {kind} {symbol}({x.typed}, {y.typed})", x.scalar)
