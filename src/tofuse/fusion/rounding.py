"""Which half-precision values a kernel rounds although they stay in registers."""

from __future__ import annotations

from tofuse.analysis.alias import is_view
from tofuse.ir.graph import Graph, Op, Scalar, Value
from tofuse.ops.table import COMPARISONS, OPS, Pattern


def values_to_round(graph: Graph, exact: bool = False) -> frozenset[str]:
    """Return the names of values to be rounded as memory would hold them; all, if `exact`.

    These are the values that a comparison or a returned maximum or minimum depends on. A backward
    may find a maximum again by comparing: both programs must see the same numbers, whether they
    load or compute them. Results of sums and of PyTorch's operators are loaded.
    """
    if exact:
        return frozenset(v.name for v in graph.values() if v.dtype.is_reduced_float)
    returned = {v for v in graph.outputs if v is not None}
    to_round: set[Value] = set()
    for op in reversed(graph.ops):
        pattern = OPS[op.kind].pattern
        if is_view(op) and op.result in returned:
            returned.update(op.inputs)
        is_origin = (op.kind in EXTREMES and op.result in returned) or _compares(op)
        propagates = pattern in PROPAGATING or op.kind in EXTREMES
        if is_origin or (propagates and not to_round.isdisjoint(op.results)):
            to_round.update(op.inputs)
    return frozenset(v.name for v in to_round if v.dtype.is_reduced_float)


def _compares(op: Op) -> bool:
    """Whether rounding may change a comparison; not with 0, where rounding keeps the sign."""
    zero = any(isinstance(x, Scalar) and x.value == 0 for x in op.operands)
    return op.kind in COMPARISONS and not zero


EXTREMES = frozenset(("amax", "amin"))
PROPAGATING = frozenset(
    (Pattern.ELEMENTWISE, Pattern.BROADCAST, Pattern.VIEW, Pattern.CONCAT, Pattern.GATHER)
)
