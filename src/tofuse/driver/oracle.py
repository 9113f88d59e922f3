"""Whether ops make a good kernel: what its loops cost on this machine, and if there are any."""

from __future__ import annotations

from dataclasses import dataclass

from tofuse.cost.machine import Machine
from tofuse.cost.nest import Cost, nest_cost, recompute_rejection
from tofuse.ir.kernel import Kernel
from tofuse.ir.schedule import Target
from tofuse.ir.tile import GpuTarget
from tofuse.schedule.build_nest import build_nest
from tofuse.schedule.build_tiles import build_tiles
from tofuse.schedule.choose_schedule import choose_schedule
from tofuse.schedule.schedule_legality import Unschedulable
from tofuse.schedule.unroll_axes import unroll_axes


@dataclass(eq=False)
class CostOracle:
    """Of kernels on the CPU. It remembers the last one: both questions are asked of it."""

    target: Target
    machine: Machine
    last: tuple[Kernel, Cost | str] | None = None

    def reject(self, kernel: Kernel) -> str | None:
        """Why a kernel has no loop nest, or a worse one than its parts; None where it is good."""
        found = self._judged(kernel)
        return found if isinstance(found, str) else recompute_rejection(found)

    def cost(self, kernel: Kernel) -> Cost | None:
        """What a kernel costs; None where it has no loop nest."""
        found = self._judged(kernel)
        return None if isinstance(found, str) else found

    def _judged(self, kernel: Kernel) -> Cost | str:
        if self.last is None or self.last[0] is not kernel:
            self.last = (kernel, self._look(kernel))
        return self.last[1]

    def _look(self, kernel: Kernel) -> Cost | str:
        try:
            kernel = unroll_axes(kernel, self.target)
            nest = build_nest(kernel, choose_schedule(kernel, self.target))
        except Unschedulable as e:
            return str(e)
        return nest_cost(nest, self.machine)


def reject_on_gpu(kernel: Kernel) -> str | None:
    """Why a kernel has no launches on a GPU; None where it has, whatever they cost."""
    try:
        build_tiles(kernel, GpuTarget())
    except Unschedulable as e:
        return str(e)
    return None
