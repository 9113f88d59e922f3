"""Estimate the work of a kernel."""

from __future__ import annotations

from tofuse.ir.kernel import Compute, Kernel, Load, Scan, Uniform
from tofuse.ops.table import OPS


def kernel_work(kernel: Kernel) -> float:
    """Return an estimate of the additions per point of the iteration space."""
    total = 0.0
    for s in kernel.body:
        if isinstance(s, (Compute, Scan)):
            total += 0.3 * (OPS[s.op].cost if s.op in OPS else 2.0)
        else:
            total += 4.0 if isinstance(s, (Uniform, Load)) else 0.5
    return max(total, 0.5)


def _rows(kind: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), kind)


# The classes of elementwise ops in `Machine.ns`; all others are cheap.
OP_CLASSES = {
    **_rows("divide", "div sqrt rsqrt reciprocal"),
    **_rows("exp", "exp exp2 expm1 log log2 log10 log1p sigmoid"),
    **_rows("tanh", "sinh cosh tanh"),
    **_rows("sin", "sin cos"),
    **_rows("erf", "tan asin acos atan asinh acosh atanh erf"),
    **_rows("pow", "pow atan2 hypot erfc"),
    **_rows("gamma", "lgamma"),
    **_rows("remainder", "truncdiv floordiv remainder fmod"),
}
