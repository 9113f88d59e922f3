"""Choose the unroll factor of the vector loop."""

from __future__ import annotations

from collections.abc import Mapping

from tofuse.cost.thresholds import FULL_ILP_CHAINS, MAX_UNROLLED_BODY_STATEMENTS, WINDOW
from tofuse.ir.kernel import WRITES, Compute, Kernel, Reduce, Stmt
from tofuse.ops.table import OPS


def unroll_factor(
    kernel: Kernel, stmt_axes: Mapping[Stmt, frozenset[str]], vector_axis: str
) -> int:
    """Return 1, 2 or 4: more for a short body, and for one with a long dependence chain."""
    body = [s for s in kernel.body if vector_axis in stmt_axes[s]]
    by_length = 4 if len(body) <= 16 else 2 if len(body) <= 48 else 1
    work, critical_path = _work_and_critical_path(body)
    if not work:
        return by_length
    useful = FULL_ILP_CHAINS * critical_path / work / max(1.0, WINDOW / work)
    allowed = [
        n for n in (2, 4) if n < 2 * useful and n * len(body) <= MAX_UNROLLED_BODY_STATEMENTS
    ]
    return max([by_length, *allowed])


def _work_and_critical_path(body: list[Stmt]) -> tuple[float, float]:
    """Return the additions of a body and of its critical path, which excludes reductions."""
    work = critical_path = 0.0
    depth: dict[str, float] = {}
    for s in body:
        cost = OPS[s.op].cost if isinstance(s, Compute) and s.op in OPS else 1.0
        work += cost
        if not isinstance(s, (*WRITES, Reduce)):
            depth[s.name] = cost + max((depth.get(u, 0.0) for u in s.uses), default=0.0)
            critical_path = max(critical_path, depth[s.name])
    return work, critical_path
