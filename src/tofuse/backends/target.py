"""Backend: what the compiler asks of a target. One is made for each compilation and device."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tofuse.analysis.alias import MemRef
from tofuse.backends.code_library import CodeLibrary
from tofuse.backends.launcher import KernelLauncher, Program, TimedCall
from tofuse.cost.kernel_cost import Evaluation
from tofuse.cost.machine import Machine
from tofuse.cost.target_costs import TargetCosts
from tofuse.disk_store import Store
from tofuse.errors import CompileError
from tofuse.ir.dims import Dim
from tofuse.ir.graph import Graph, Value
from tofuse.ir.kernel import Kernel
from tofuse.ir.launch_facts import AliasPairs, LaunchFacts
from tofuse.ir.plan import Plan
from tofuse.ir.region import Region
from tofuse.ir.rules import Reason
from tofuse.ir.schedule import ScheduledKernel

ChosenSchedule = Hashable  # in the backend's own terms; None: its heuristics choose
LaunchGroup = Callable[..., None]  # takes the words of all launches
LoadProgram = Callable[[Mapping[str, Callable[..., object]]], Program]  # with functions of a plan
# from a program, its plan, and how many of the plan's parameters are constants
Recorder = Callable[[LoadProgram, Plan, int], Program]


@dataclass(frozen=True, eq=False)
class KernelRequest:
    """A request to schedule a region. Regions of equal structure share its kernel.

    `finish` returns the kernel with the region's name, random streams and stores. `updates` are
    pairs of buffers: an argument, and the new value that the program writes into it.
    """

    kernel: Kernel
    finish: Callable[[Kernel], Kernel]
    updates: frozenset[tuple[str, str]] = frozenset()
    schedule: ChosenSchedule = None


class KernelCall(NamedTuple):
    """A scheduled kernel, which several regions may share, and the sizes that a region passes."""

    scheduled: ScheduledKernel
    sizes: tuple[Dim, ...]


class EmittedKernel(NamedTuple):
    """A scheduled kernel and its text."""

    scheduled: ScheduledKernel
    text: str


@dataclass(frozen=True)
class Linking:
    """Where machine code goes and is kept, and how many threads compile."""

    library: CodeLibrary
    store: Store
    threads: int


@dataclass(frozen=True, eq=False)
class GroupedCalls:
    """Calls of a kernel that are to be one launch, with the sizes of each."""

    scheduled: ScheduledKernel
    launcher: KernelLauncher
    sizes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class LoadedProduct:
    """The code of a matrix product that would be a library call, how it is bound, and why."""

    launcher: KernelLauncher
    arguments: tuple[Value, ...]
    sizes: tuple[Dim, ...]
    alias_pairs: AliasPairs
    why: str


class Backend(Protocol):
    """A target of code generation: each question that differs by target has one method."""

    @property
    def executor(self) -> str:
        """The name of its kernels in reports."""

    @property
    def contracts_products(self) -> bool:
        """Whether a kernel may compute a matrix product and the ops around it (`contract`)."""

    @property
    def costs(self) -> TargetCosts:
        """What fusion must know of the target."""

    def call_machine(self, measured: Machine) -> Machine:
        """Return the costs of PyTorch's calls for predictions; `measured` are the CPU's."""

    # -- while regions grow --

    def evaluate(self, kernel: Kernel) -> Evaluation:
        """Return what a kernel costs as the heuristics schedule it, or why it is rejected."""

    # -- code generation --

    def schedule(self, requests: Sequence[KernelRequest]) -> list[KernelCall | Reason]:
        """Return each kernel scheduled, or why it has no schedule.

        Kernels that differ only in numbers get the same scheduled kernel, and pass the numbers.
        """

    def emit(self, scheduled: ScheduledKernel, exact: bool) -> str:
        """Return the text of a kernel, with eager's rounding if `exact`; raise CompileError."""

    def load(
        self, emitted: Sequence[EmittedKernel], linking: Linking
    ) -> list[KernelLauncher | CompileError]:
        """Return what launches each kernel, the same object for equal code, or its error."""

    def launch_facts(self, call: KernelCall) -> LaunchFacts:
        """Return which operands may be written over, and whether launches may be grouped."""

    def load_groups(
        self, groups: Mapping[int, GroupedCalls], exact: bool, threads: int
    ) -> dict[int, LaunchGroup]:
        """Return what launches each group; the runtime launches the groups that are left out."""

    def recorder(self, graph: Graph, plan: Plan) -> Recorder | None:
        """Return what lets a program replay its recorded launches; None if it cannot."""

    def load_product(
        self, region: Region, storage: Mapping[Value, MemRef], machine: Machine, linking: Linking
    ) -> LoadedProduct | str | None:
        """Return code for a library call, or why the library computes it; None: no product."""

    # -- predictions and tuning --

    def predicted_us(self, call: KernelCall, nbytes: Dim, machine: Machine) -> float:
        """Return the microseconds of a call that moves `nbytes`; `machine` is the CPU's."""

    def timing_obstacle(self) -> str | None:
        """Return why nothing can be timed now; None if calls can be timed."""

    def timing_key(self) -> tuple[str, ...]:
        """Return what times depend on besides the program."""

    def variants(self, scheduled: ScheduledKernel, machine: Machine) -> list[ChosenSchedule]:
        """Return other schedules of a kernel to time, the most promising first."""

    def prune(
        self, default: EmittedKernel, variants: Sequence[EmittedKernel], threads: int
    ) -> list[EmittedKernel]:
        """Return the variants that are worth timing, judged by their machine code."""

    def time_calls(self, calls: Sequence[TimedCall]) -> list[float]:
        """Return the microseconds of each call; the calls alternate."""
