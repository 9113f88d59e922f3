"""The cost oracle: schedules each kernel of a compilation once, and predicts what it costs."""

from __future__ import annotations

from dataclasses import dataclass, field

from tofuse.cost.gpu_machine import GpuMachine, gpu_machine
from tofuse.cost.machine import Machine
from tofuse.cost.nest_cost import Cost, nest_cost, recompute_rejection
from tofuse.cost.tile_cost import gpu_cost
from tofuse.fusion.lowering_memo import LoweringMemo
from tofuse.ir.kernel import Kernel
from tofuse.ir.nest import Nest
from tofuse.ir.schedule import Schedule, Target
from tofuse.ir.tile import GpuTarget
from tofuse.region import Reason
from tofuse.runtime.cuda import capability, device_name
from tofuse.schedule.build_nest import build_nest
from tofuse.schedule.build_tiles import build_tiles
from tofuse.schedule.choose_schedule import choose_schedule
from tofuse.schedule.schedule_legality import Unschedulable
from tofuse.schedule.unroll_axes import unroll_axes


@dataclass(frozen=True, eq=False)
class ScheduledKernel:
    """A kernel after unrolling, with the chosen schedule, and its nest and cost if it has a nest.

    `rejection` says why it has none, or why it costs more than its parts.
    """

    kernel: Kernel
    schedule: Schedule
    rejection: Reason | None
    nest: Nest | None = None
    cost: Cost | None = None


@dataclass(frozen=True, eq=False)
class CostOracle:
    """Schedules and evaluates kernels; code generation takes what it keeps of the CPU's."""

    target: Target
    machine: Machine
    lowerings: LoweringMemo = field(default_factory=LoweringMemo)
    scheduled: dict[Kernel, ScheduledKernel] = field(default_factory=dict)
    on_gpu: dict[tuple[Kernel, str], Cost | Reason] = field(default_factory=dict)

    def reject(self, kernel: Kernel) -> Reason | None:
        """Return why a kernel has no nest or costs more than its parts; None if it is accepted."""
        return self.schedule(kernel).rejection

    def cost(self, kernel: Kernel) -> Cost | None:
        """Return the predicted cost of a kernel; None if it has no nest."""
        return self.schedule(kernel).cost

    def schedule(self, kernel: Kernel) -> ScheduledKernel:
        """Return the kernel with the schedule that the heuristics choose."""
        if kernel not in self.scheduled:
            unrolled = unroll_axes(kernel, self.target)
            schedule = choose_schedule(unrolled, self.target)
            try:
                nest = build_nest(unrolled, schedule)
                cost = nest_cost(nest, self.machine)
                scheduled = ScheduledKernel(
                    unrolled, schedule, recompute_rejection(cost), nest, cost
                )
            except Unschedulable as e:
                scheduled = ScheduledKernel(unrolled, schedule, e.reason)
            self.scheduled[kernel] = scheduled
        return self.scheduled[kernel]

    def cost_on_gpu(self, kernel: Kernel, device: str) -> Cost | Reason:
        """Return the predicted cost of a kernel's launches on a GPU, or why it has none."""
        key = kernel, device
        if key not in self.on_gpu:
            self.on_gpu[key] = _cost_on_gpu(kernel, device)
        return self.on_gpu[key]


def machine_of_gpu(device: str) -> GpuMachine:
    """Return the costs of the GPU at hand."""
    return gpu_machine(device_name(device), *capability(device))


def _cost_on_gpu(kernel: Kernel, device: str) -> Cost | Reason:
    gpu = machine_of_gpu(device)
    try:
        tiles = build_tiles(kernel, GpuTarget(gpu.multiprocessors, gpu.capability))
    except Unschedulable as e:
        return e.reason
    return gpu_cost(tiles, gpu)
