"""Whether two kernels are better separate: where their loops differ, by the cost of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

from tofuse.cost.kernel_cost import Cost, Evaluation, recomputation_reason
from tofuse.cost.target_costs import TargetCosts
from tofuse.cost.thresholds import INEFFICIENCY, NEGLIGIBLE_US
from tofuse.ir.dims import size_hint, stride_order
from tofuse.ir.graph import Op
from tofuse.ir.rules import Reason


def is_inefficient(cost: Cost | None) -> TypeGuard[Cost]:
    """Whether a kernel takes much longer than it would at best.

    On the CPU the time goes into strided accesses, idle vector lanes, and values computed twice.
    """
    return cost is not None and cost.us > INEFFICIENCY * cost.least_us + NEGLIGIBLE_US


def recomputes_too_much(evaluation: Evaluation) -> bool:
    """Whether ops cannot be one kernel, or a kernel that takes long to compute values twice."""
    rejection, cost = evaluation
    return rejection is not None or (is_inefficient(cost) and cost.recomputed_adds > 0)


def loop_structure_changes(a: Sequence[Op], b: Sequence[Op]) -> bool:
    """Whether two kernels differ in their number of elements or in the stride order of results.

    A value per group or channel that is computed in the kernel keeps axes separate that are one
    axis in memory; a value loaded from a small tensor does not. A result whose layout crosses the
    rows of earlier reductions can be transposed in tiles by a kernel of its own. Two products have
    loops of their own: each has columns or a depth that the other lacks.
    """
    if all(any(op.kind == "contract" for op in ops) for ops in (a, b)):
        return True
    x, y = max(map(_element_count, a)), max(map(_element_count, b))
    results = [op for op in (*a, *b) if _element_count(op) == x]
    return x != y or len({stride_order(op.result.layout) for op in results}) > 1


def _element_count(op: Op) -> int:
    return max((size_hint(v.type.numel) for v in (*op.inputs, *op.results)), default=0)


def merge_too_costly(
    together: Cost | None, separate: tuple[Cost | None, Cost | None], costs: TargetCosts
) -> Reason | None:
    """Return why two kernels of a target stay separate; None if one kernel is as good."""
    a, b = separate
    if together is None or a is None or b is None:
        return None
    if a.us + b.us >= costs.split_threshold * together.us:
        return None
    if together.recomputed_adds:
        return recomputation_reason(together, a.us + b.us)
    return costs.separate_rule(f"{together.us:.0f}", f"{a.us + b.us:.0f}")
