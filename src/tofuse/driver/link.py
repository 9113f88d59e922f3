"""Regions that have kernels, their predicted times, and the linked program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tofuse.cache.artifact import (
    Artifact,
)
from tofuse.config import Config
from tofuse.cost.machine import Machine, machine_on
from tofuse.cost.nest import nest_cost, tile_program_us
from tofuse.cost.traffic import traffic_us
from tofuse.driver.autotune import ATEN, Choice
from tofuse.driver.codegen import (
    GeneratedKernel,
)
from tofuse.driver.load_kernels import Launch
from tofuse.fusion.assign_executors import (
    NO_KERNELS,
    Assignment,
    assign_kernel,
)
from tofuse.ir.dims import symbol
from tofuse.ir.executor import Executors
from tofuse.ir.graph import device_of
from tofuse.ir.plan import Plan
from tofuse.ir.region import Partition, Region
from tofuse.ir.schedule import Schedule
from tofuse.ir.tile import TileProgram
from tofuse.report.model import region_bytes
from tofuse.runtime.clock import Clock
from tofuse.runtime.execute import CompiledPlan, Tensor
from tofuse.runtime.gemm_launch import GemmLauncher
from tofuse.runtime.launch import Launcher


@dataclass(frozen=True, eq=False)
class LinkedProgram:
    """A program that runs: its kernels, who runs each region, its plan, and what went wrong."""

    load: Callable[[Clock | None], CompiledPlan]  # with a clock, its steps are timed
    built: Sequence[GeneratedKernel]
    assigned: Mapping[Region, Assignment]
    plan: Plan
    notes: Sequence[str]
    recorded: Artifact | None  # where all of it is data


def program_artifact(
    plan: Plan, launchers: Sequence[Launch], constants: Sequence[Tensor]
) -> Artifact | None:
    """A program of kernels and PyTorch's operators as data; none where a kernel is a GPU's."""
    codes = [x.code for x in launchers if isinstance(x, (Launcher, GemmLauncher))]
    if len(codes) < len(launchers):
        return None
    return Artifact(plan, tuple(codes), tuple(constants))


def requested_kernels(
    part: Partition, choices: Mapping[Region, Choice], executors: Executors
) -> tuple[dict[Region, Schedule | None], dict[Region, str]]:
    """The schedules of regions that shall be kernels, None for the usual; why others shall not."""
    wanted: dict[Region, Schedule | None] = {}
    unfit: dict[Region, str] = {}
    for r in (r for r in part.regions if not r.library):
        choice = choices.get(r, Choice())
        if choice.kind == ATEN or not executors.allows_kernels:
            unfit[r] = choice.why if choice.kind == ATEN else NO_KERNELS
        else:
            wanted[r] = choice.schedule
    return wanted, unfit


def assign_kernels(
    running: Sequence[GeneratedKernel],
    part: Partition,
    choices: Mapping[Region, Choice],
    machine: Machine,
) -> dict[Region, Assignment]:
    """Our kernels by region, with what each is predicted to take."""
    found = {}
    for b in running:
        why = choices[b.region].why if b.region in choices else "generated code"
        us, device = _predicted(b, part, machine), device_of(b.region.ops)
        found[b.region] = assign_kernel(us, why, device)
    return found


def _predicted(b: GeneratedKernel, part: Partition, machine: Machine) -> float:
    """Microseconds of a kernel; by its bytes alone where it is made for sizes of any region."""
    if isinstance(b.nest, TileProgram):
        return tile_program_us(b.nest, machine_on(device_of(b.region.ops), machine))
    if b.sizes == tuple(symbol(s) for s in b.nest.kernel.symbols):
        return nest_cost(b.nest, machine).us
    return traffic_us(machine, region_bytes(b.region, part.storage)) + machine.launch_us


def unsupported_notes(part: Partition, config: Config) -> list[str]:
    """What is asked for and done for kernels on the CPU alone."""
    if all(r.library or device_of(r.ops) == "cpu" for r in part.regions):
        return []
    notes = ["verify=True does not check kernels on a GPU"] if config.verify else []
    if config.tune == "measure":
        notes.append("tune='measure' has no candidates for kernels on a GPU: they stay as they are")
    return notes
