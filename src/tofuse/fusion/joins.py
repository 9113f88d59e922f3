"""What it would cost to compute the pieces of a join where the join is."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from tofuse.ir.graph import Op
from tofuse.ops.table import Pattern, opdef

JOINED_WORK = 40.0  # additions an element, about what writing and reading a piece takes


def dear_join(
    joins: Sequence[Op], inside: Container[Op], sources: Callable[[Op], list[Op]]
) -> str | None:
    """Why a kernel may not hold these joins: every element computes all pieces, and picks one."""
    for join in joins:
        seen = dict.fromkeys(s for s in sources(join) if s in inside)
        work = list(seen)
        while work:
            new = [s for s in sources(work.pop()) if s in inside and s not in seen]
            seen |= dict.fromkeys(new)
            work += new
        cost = sum(opdef(s.kind).cost for s in seen) * (1 - 1 / len(join.inputs))
        if cost > JOINED_WORK:
            return f"every element of the {join.kind} would compute all pieces"
    return None


def is_join(op: Op) -> bool:
    return opdef(op.kind).pattern is Pattern.JOIN
