"""Whether a kernel may compute the operands of a concat or pad where it computes the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence

from tofuse.cost.thresholds import MEMORY_ROUND_TRIP
from tofuse.ir.graph import Op
from tofuse.ir.rules import Reason, Rule
from tofuse.ops.table import OPS, Pattern


def concat_too_costly(
    concats: Sequence[Op], inside: Container[Op], predecessors: Mapping[Op, list[Op]]
) -> Reason | None:
    """Return why a kernel of the ops `inside` may not hold these concats; None if it may.

    Each element of the result computes all operands and selects one.
    """
    for concat in concats:
        count = len(concat.inputs)
        budget = MEMORY_ROUND_TRIP / (1 - 1 / count) if count > 1 else math.inf
        if costs_more_than(budget, concat, lambda p: p in inside, predecessors):
            return Rule.CONCAT_COMPUTES_ALL(concat.kind)
    return None


def costs_more_than(
    budget: float, op: Op, repeats: Callable[[Op], bool], predecessors: Mapping[Op, list[Op]]
) -> bool:
    """Whether the ops that an op reads, and that it `repeats`, cost more additions an element."""
    seen, work = {op}, [op]
    while work and budget >= 0:
        new = [p for p in predecessors[work.pop()] if p not in seen and repeats(p)]
        seen.update(new)
        work += new
        budget -= sum(OPS[p.kind].cost for p in new)
    return budget < 0


def is_concat_or_pad(op: Op) -> bool:
    return OPS[op.kind].pattern is Pattern.CONCAT
