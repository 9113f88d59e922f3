"""Which orders of loops a kernel may have."""

from __future__ import annotations

from tofuse.ir.kernel import Kernel
from tofuse.ir.schedule import Schedule


class Unschedulable(Exception):
    """The loop order does not fit the kernel; the message is a verdict's reason."""


def check_loops(kernel: Kernel, schedule: Schedule) -> None:
    """Every axis has a loop, and before it maybe one over tiles; none is shared out twice."""
    loops, parallel = schedule.loops, schedule.parallel
    strips: dict[str, list[int]] = {a.name: [] for a in kernel.axes}
    for lp in loops:
        if lp.axis not in strips:
            raise Unschedulable(f"there is no axis {lp.axis}")
        strips[lp.axis].append(lp.strip)
    for axis, found in strips.items():
        if not found or found[-1] != 0 or 0 in found[:-1] or len(found) > 2:
            raise Unschedulable(f"{axis} needs one loop, and one over tiles before it or none")
    shared = [lp.axis for lp in loops[:parallel]]
    if len(set(shared)) != len(shared):
        raise Unschedulable("an axis and its tiles are shared out among threads")
    if schedule.vector > 1 and parallel == len(loops) and loops:
        raise Unschedulable("the loop that runs in vectors is shared out among threads")
