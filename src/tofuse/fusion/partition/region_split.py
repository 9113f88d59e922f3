"""Where to cut a kernel in two that would hold too much memory as one."""

from __future__ import annotations

from collections.abc import Container

from tofuse.analysis.alias import is_view
from tofuse.ir.dims import hint
from tofuse.ir.graph import Value
from tofuse.ir.region import Region, Strided

Split = frozenset[frozenset[str]]  # results of ops, by name: no kernel makes some of two parts


def in_two(region: Region, last: Container[Value], storage: dict[Value, Strided]) -> Split | None:
    """The results of its ops as two parts, one made after the other; None where no cut helps.

    While one kernel runs, all it reads and all it makes is held. Of two, the first hands on what
    the second needs, and what it alone reads is gone by then, if it is in `last`: what nobody
    reads after the region.
    """
    made: dict[Value, int] = {}
    read: dict[Value, int] = {}  # by which op at last
    seen: dict[Value, Value] = {}  # of views: what they are of
    names: list[frozenset[str]] = []
    for op in region.ops:
        if is_view(op):
            seen[op.result] = seen.get(op.inputs[0], op.inputs[0])
            continue
        for v in op.inputs:
            source = seen.get(v, v)
            if source not in made and source in storage:
                source = storage[source].root
            read[source] = len(names)
        made |= dict.fromkeys(op.results, len(names))
        names.append(frozenset(v.name for v in op.results))
    kept = set(region.outputs)
    going = [(at, _nbytes(v)) for v, at in read.items() if v not in made and v in last]

    def held(cut: int) -> int:
        """The most bytes while two kernels run of which the second begins with that op."""
        given = sum(n for _, n in going)
        passed = [v for v, at in made.items() if at < cut and (v in kept or read.get(v, 0) >= cut)]
        first = given + sum(map(_nbytes, passed))
        gone = sum(n for at, n in going if at < cut)
        return max(first, first - gone + sum(_nbytes(v) for v in kept if made[v] >= cut))

    best = min(range(1, len(names)), key=held, default=0)
    if not best or held(best) >= held(0):
        return None
    return frozenset((frozenset().union(*names[:best]), frozenset().union(*names[best:])))


def _nbytes(v: Value) -> int:
    return hint(v.type.nbytes)
