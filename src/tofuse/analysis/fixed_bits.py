"""Fixed bits: results whose bits depend on no schedule, partition or known size."""

from __future__ import annotations

from tofuse.ir.dims import SymDim
from tofuse.ir.graph import Graph, Op, Scalar
from tofuse.ir.types import DType
from tofuse.ops.table import OPS, Pattern

COPIES = (Pattern.BROADCAST, Pattern.VIEW, Pattern.CONCAT, Pattern.GATHER, Pattern.SOURCE)


def has_fixed_bits(graph: Graph) -> bool:
    """Return whether every correct program for a graph computes the same bits.

    It does if all ops copy, or compute each element by itself in float32, float64, integers or
    booleans, or reduce to integers and booleans. Float sums and products depend on their order,
    and so does the sign of a zero that is the largest of a row. Intermediates of half precision are
    rounded or not, as the partition has it. Numbers that follow from sizes become constants in a
    program for constant sizes. Graphs with PyTorch's operators or random
    numbers count as not fixed.
    """
    return all(map(_is_exact, graph.ops))


def _is_exact(op: Op) -> bool:
    pattern = OPS[op.kind].pattern
    results_are_float = any(v.dtype.is_float for v in op.results)
    scalars = [x.value for x in op.operands if isinstance(x, Scalar)]
    numbers = (*scalars, *(value for name, value in op.attrs if name == "value"))
    if results_are_float and any(isinstance(n, SymDim) for n in numbers):
        return False
    if pattern in COPIES:
        return True
    if pattern is Pattern.REDUCE:
        return not results_are_float
    types = {v.dtype for v in (*op.inputs, *op.results)}
    floats = {t for t in types if t.is_float}
    return pattern is Pattern.ELEMENTWISE and floats <= {DType.F32, DType.F64}
