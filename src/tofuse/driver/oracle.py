"""The cost oracle: whether a kernel can be scheduled, and what its loops cost."""

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
    """Evaluates kernels for the CPU; keeps the last result, since `cost` follows `reject`."""

    target: Target
    machine: Machine
    last: tuple[Kernel, Cost | str] | None = None

    def reject(self, kernel: Kernel) -> str | None:
        """Return why a kernel has no nest or costs more than its parts; None if it is accepted."""
        result = self._evaluate(kernel)
        return result if isinstance(result, str) else recompute_rejection(result)

    def cost(self, kernel: Kernel) -> Cost | None:
        """Return the predicted cost of a kernel; None if it has no nest."""
        result = self._evaluate(kernel)
        return None if isinstance(result, str) else result

    def _evaluate(self, kernel: Kernel) -> Cost | str:
        if self.last is None or self.last[0] is not kernel:
            self.last = (kernel, self._schedule_and_cost(kernel))
        return self.last[1]

    def _schedule_and_cost(self, kernel: Kernel) -> Cost | str:
        try:
            kernel = unroll_axes(kernel, self.target)
            nest = build_nest(kernel, choose_schedule(kernel, self.target))
        except Unschedulable as e:
            return str(e)
        return nest_cost(nest, self.machine)


def reject_on_gpu(kernel: Kernel) -> str | None:
    """Return why a kernel has no GPU launches; None if it has, whatever they cost."""
    try:
        build_tiles(kernel, GpuTarget())
    except Unschedulable as e:
        return str(e)
    return None
