"""Check that a schedule is legal for a kernel."""

from __future__ import annotations

from tofuse.ir.kernel import CARRIED, Kernel, Previous
from tofuse.ir.rules import RejectedKernel, Rule
from tofuse.ir.schedule import Schedule
from tofuse.schedule.scatter_axes import combining_axes


class Unschedulable(RejectedKernel):
    """A kernel has no such loops or launches."""


def check_schedule(kernel: Kernel, schedule: Schedule) -> None:
    """Raise Unschedulable unless every axis has one loop, maybe with a tile loop outside of it.

    An axis and its tiles must not both be parallel, nor may the vector loop be parallel. The steps
    of a scan run in one loop, in order; no loop of its kernel runs several iterations at once. Nor
    does a loop whose values a scatter combines.
    """
    loops, parallel = schedule.loops, schedule.parallel
    strips: dict[str, list[int]] = {a.name: [] for a in kernel.axes}
    for lp in loops:
        if lp.axis not in strips:
            raise Unschedulable(Rule.UNKNOWN_AXIS(lp.axis))
        strips[lp.axis].append(lp.strip)
    for axis, found in strips.items():
        if not found or found[-1] != 0 or 0 in found[:-1] or len(found) > 2:
            raise Unschedulable(Rule.AXIS_LOOPS(axis))
    directions: dict[str, bool] = {}
    for scan in (s for s in kernel.body if isinstance(s, CARRIED)):
        (first, loop) = next((k, lp) for k, lp in enumerate(loops) if lp.axis == scan.axis)
        if isinstance(scan, Previous) and loop is loops[-1] and schedule.vector > 1:
            raise Unschedulable(Rule.SCAN_LOOP(scan.axis))
        if first < parallel or loop.strip or any(lp.jam > 1 for lp in loops):
            raise Unschedulable(Rule.SCAN_LOOP(scan.axis))
        if directions.setdefault(scan.axis, scan.reverse) != scan.reverse:
            raise Unschedulable(Rule.SCAN_DIRECTIONS(scan.axis))
    combining = combining_axes(kernel)
    for k, lp in enumerate(loops):
        if lp.axis in combining and (k < parallel or lp.jam > 1):
            raise Unschedulable(Rule.SCATTER_LOOP(lp.axis))
    shared = [lp.axis for lp in loops[:parallel]]
    if len(set(shared)) != len(shared):
        raise Unschedulable(Rule.PARALLEL_TILES())
    if schedule.vector > 1 and parallel == len(loops) and loops:
        raise Unschedulable(Rule.PARALLEL_VECTOR())
