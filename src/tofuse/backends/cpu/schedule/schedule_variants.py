"""Alternative legal schedules of a kernel, for autotuning."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from tofuse.backends.cpu.schedule.build_nest import build_nest
from tofuse.cost.thresholds import MAX_TUNED_UNROLL, TUNED_VECTOR_AXIS_TILES
from tofuse.ir.kernel import Kernel
from tofuse.ir.nest import Nest
from tofuse.ir.schedule import Loop, Schedule
from tofuse.schedule.schedule_legality import Unschedulable


def schedule_variants(kernel: Kernel, chosen: Schedule) -> list[Nest]:
    """Return the nests of the legal schedules that differ from the chosen one in one respect."""
    found: list[Nest] = []
    for schedule in (s for s in dict.fromkeys(_neighbors(chosen)) if s != chosen):
        with suppress(Unschedulable):
            found.append(build_nest(kernel, schedule, repeat_reductions=True))
    return found


def _neighbors(schedule: Schedule) -> Iterator[Schedule]:
    """Yield schedules that differ in one respect, legal or not."""
    loops = schedule.loops
    if not loops:
        return
    for unroll in (1, 2, 4, MAX_TUNED_UNROLL):
        yield replace(schedule, unroll=unroll)
    for parallel in (schedule.parallel - 1, schedule.parallel + 1):
        if 0 <= parallel < len(loops):
            yield replace(schedule, parallel=parallel)
    for k, loop in enumerate(loops):
        if loop.strip:
            for size in TUNED_VECTOR_AXIS_TILES:
                yield replace(schedule, loops=(*loops[:k], Loop(loop.axis, size), *loops[k + 1 :]))
    for k in range(len(loops) - 1):
        interchanged = (*loops[:k], loops[k + 1], loops[k], *loops[k + 2 :])
        yield replace(schedule, loops=interchanged)
    if schedule.vector > 1:
        yield replace(schedule, vector=schedule.vector // 2)
    if not any(loop.strip for loop in loops):
        last = loops[-1].axis
        tiled = (*loops[:-1], Loop(last, TUNED_VECTOR_AXIS_TILES[1]), Loop(last))
        yield replace(schedule, loops=tiled)
        yield replace(schedule, loops=tiled, parallel=min(schedule.parallel + 1, len(tiled) - 1))
