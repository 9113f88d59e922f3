"""The attributes of an op whose operands and result have one more dimension, the first."""

from __future__ import annotations

from tofuse.ir.graph import Attr, Op
from tofuse.ops.table import OPS, Pattern

Attrs = dict[str, Attr]


def batched_attrs(op: Op, n: int) -> Attrs:
    """Return the attributes of an op over a batch dimension of extent `n` in front."""
    attrs = dict(op.attrs)
    if OPS[op.kind].pattern is Pattern.ELEMENTWISE:
        return attrs
    for name, extent in {"shape": n, "start": 0, "step": 1, "low": 0, "high": 0}.items():
        if name in attrs:
            attrs[name] = (extent, *op.dims(name))
    if "dim" in attrs:
        attrs["dim"] = op.int("dim") + 1
    if "dims" in attrs:
        batch = () if OPS[op.kind].pattern is Pattern.REDUCE else (0,)
        attrs["dims"] = (*batch, *shifted_dims(op))
    return attrs


def shifted_dims(op: Op) -> tuple[int, ...]:
    """Return the attribute `dims` shifted by the batch dimension; -1 means no dimension."""
    return tuple(d + 1 if d >= 0 else d for d in op.ints("dims"))
