"""Which halves are rounded as memory would hold them, though a kernel keeps them in registers."""

from __future__ import annotations

from tofuse.ir.graph import Graph, Op, Scalar, Value
from tofuse.ops.table import Pattern, opdef


def rounded_halves(graph: Graph, exact: bool = False) -> frozenset[str]:
    """The names of those that a comparison, or a maximum that is kept, is made of; all, if `exact`.

    The backward finds a maximum again by comparing: both programs must see the same numbers,
    whichever of them they read from memory. Sums and what PyTorch computes are read from there.
    """
    if exact:
        return frozenset(v.name for v in graph.values() if v.dtype.is_narrow)
    kept = {v for v in graph.outputs if v is not None}
    wanted: set[Value] = set()
    for op in reversed(graph.ops):
        pattern = opdef(op.kind).pattern
        if pattern in (Pattern.VIEW, Pattern.BROADCAST) and op.result in kept:
            kept.update(op.inputs)
        begins = (op.kind in EXTREMES and op.result in kept) or _compares(op)
        passes = pattern in PASSED or op.kind in EXTREMES
        if begins or (passes and not wanted.isdisjoint(op.results)):
            wanted.update(op.inputs)
    return frozenset(v.name for v in wanted if v.dtype.is_narrow)


def _compares(op: Op) -> bool:
    """With 0 only signs count, which rounding keeps."""
    zero = any(isinstance(x, Scalar) and x.value == 0 for x in op.operands)
    return op.kind in COMPARISONS and not zero


EXTREMES = frozenset(("amax", "amin"))
COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))
PASSED = frozenset(
    (Pattern.ELEMENTWISE, Pattern.BROADCAST, Pattern.VIEW, Pattern.JOIN, Pattern.TAKE)
)
