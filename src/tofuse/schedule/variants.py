"""Other legal schedules of a kernel than the chosen one, for whoever can measure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tofuse.ir.kernel import Kernel
from tofuse.ir.schedule import Loop, Schedule
from tofuse.schedule.build_nest import build_nest
from tofuse.schedule.loop_orders import Unschedulable

STRIPS = (1024, 4096, 16384)
MOST_UNROLLED = 8


def variants(kernel: Kernel, chosen: Schedule) -> tuple[Schedule, ...]:
    """Schedules that differ from the chosen one in one respect and have a loop nest."""
    found = [s for s in dict.fromkeys(_changed(chosen)) if s != chosen]
    return tuple(s for s in found if _is_legal(kernel, s))


def _changed(s: Schedule) -> Iterator[Schedule]:
    if not s.loops:
        return
    for unroll in (1, 2, 4, MOST_UNROLLED):
        yield replace(s, unroll=unroll)
    for parallel in (s.parallel - 1, s.parallel + 1):
        if 0 <= parallel < len(s.loops):
            yield replace(s, parallel=parallel)
    for k, loop in enumerate(s.loops):
        if loop.strip:
            for strip in STRIPS:
                yield replace(s, loops=(*s.loops[:k], Loop(loop.axis, strip), *s.loops[k + 1 :]))
    for k in range(len(s.loops) - 1):
        swapped = (*s.loops[:k], s.loops[k + 1], s.loops[k], *s.loops[k + 2 :])
        yield replace(s, loops=swapped)
    if s.vector > 1:
        yield replace(s, vector=s.vector // 2)
    if not any(loop.strip for loop in s.loops):
        last = s.loops[-1].axis
        tiled = (*s.loops[:-1], Loop(last, STRIPS[1]), Loop(last))
        yield replace(s, loops=tiled)
        yield replace(s, loops=tiled, parallel=min(s.parallel + 1, len(tiled) - 1))


def _is_legal(kernel: Kernel, schedule: Schedule) -> bool:
    try:
        build_nest(kernel, schedule, repeat=True)
    except Unschedulable:
        return False
    return True
