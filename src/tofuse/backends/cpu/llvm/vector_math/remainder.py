"""The remainder of a truncated division: C's `fmod`, exactly.

With q = trunc(x / y), x - q y is less than y and a multiple of the last place of the smaller
operand. It is therefore representable, and one fma computes it. A quotient below `LIMIT` that is
just below an integer may be rounded up to it; then x - q y is negative, and y is added back.
Everything else, such as a larger quotient, is computed by the C library, under a branch.
"""

from __future__ import annotations

from tofuse.backends.cpu.llvm.vector_math.formula_builder import FormulaBuilder, Value

LIMIT = {"float": 2.0**22, "double": 2.0**51}


def fmod(b: FormulaBuilder, x: Value, y: Value) -> Value:
    """Return x - trunc(x / y) y, with the sign of x."""
    magnitude, divisor = b.abs(x), b.abs(y)
    quotient = magnitude / divisor
    remainder = b.fma(-b.intrinsic("trunc", quotient), divisor, magnitude)
    remainder = b.select(remainder < 0.0, remainder + divisor, remainder)
    remainder = b.copysign(b.select(magnitude < divisor, magnitude, remainder), x)  # inf * 0 is nan
    is_large = b.compare("uge", quotient, LIMIT[x.scalar])
    return b.branch_if_any(is_large, (remainder,), lambda: (_library_fmod(b, x, y),))[0]


def _library_fmod(b: FormulaBuilder, x: Value, y: Value) -> Value:
    """Call C's `fmod` lane by lane, in a function that is not inlined because it is long."""
    ty = b.type(x.scalar)
    symbol = f"@tofuse.frem.{b.suffix(x.scalar)}"
    head = f"define internal {ty} {symbol}({ty} %x, {ty} %y) noinline nounwind"
    b.f.declarations[symbol] = f"{head} {{\n  %r = frem {ty} %x, %y\n  ret {ty} %r\n}}\n"
    return b.emit(f"call {ty} {symbol}({x.typed}, {y.typed})", x.scalar)
