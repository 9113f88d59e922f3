"""What it would cost to compute the pieces of a join where the join is."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence

from tofuse.ir.graph import Op
from tofuse.ops.table import Pattern, opdef

JOINED_WORK = 40.0  # additions an element, about what writing and reading a piece takes


def dear_join(
    joins: Sequence[Op], inside: Container[Op], sources: Mapping[Op, list[Op]]
) -> str | None:
    """Why a kernel may not hold these joins: every element computes all pieces, and picks one."""
    for join in joins:
        left = JOINED_WORK / (1 - 1 / len(join.inputs)) if len(join.inputs) > 1 else math.inf
        seen: set[Op] = set()
        work = [join]
        while work and left >= 0:
            new = [s for s in sources[work.pop()] if s in inside and s not in seen]
            seen.update(new)
            work += new
            left -= sum(opdef(s.kind).cost for s in new)
        if left < 0:
            return f"every element of the {join.kind} would compute all pieces"
    return None


def is_join(op: Op) -> bool:
    return opdef(op.kind).pattern is Pattern.JOIN
