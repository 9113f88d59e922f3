"""A target that only tests use: kernels are text, which the reference interpreter runs."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from tofuse.analysis.alias import MemRef
from tofuse.backends.interp.interpreter import run_kernel
from tofuse.backends.launcher import KernelLauncher, TimedCall
from tofuse.backends.target import (
    ChosenSchedule,
    EmittedKernel,
    GroupedCalls,
    KernelCall,
    KernelRequest,
    LaunchGroup,
    Linking,
    LoadedProduct,
    Recorder,
)
from tofuse.cost.kernel_cost import Evaluation
from tofuse.cost.machine import Machine
from tofuse.cost.target_costs import TargetCosts
from tofuse.errors import CompileError, ParseError
from tofuse.ir.affine import AffineExpr
from tofuse.ir.dims import Dim, evaluate, symbol
from tofuse.ir.graph import Graph, Value
from tofuse.ir.kernel import Gather, Kernel, Load, Store
from tofuse.ir.launch_facts import LaunchFacts
from tofuse.ir.parse_kernel import parse_kernel
from tofuse.ir.plan import Plan
from tofuse.ir.region import Region
from tofuse.ir.rules import Reason, Rule
from tofuse.ir.schedule import ScheduledKernel
from tofuse.ops.reference import TO_TORCH


@dataclass(frozen=True, eq=False)
class Statements:
    """A kernel whose statements run one after the other, each over all of its axes."""

    kernel: Kernel

    def __repr__(self) -> str:
        return "\n".join(f"for all of {s!r}" for s in self.kernel.body)


@dataclass(frozen=True, eq=False)
class Interpreted:
    """Runs a kernel on the memory that a call passes."""

    kernel: Kernel
    host_seeds: tuple[int, ...] = ()

    def __call__(self, *words: int) -> None:
        kernel = self.kernel
        sizes = dict(zip(kernel.symbols, words[len(kernel.buffers) :], strict=True))
        buffers = {
            b.name: _memory(address, _elements(kernel, b.name, sizes), TO_TORCH[b.dtype])
            for b, address in zip(kernel.buffers, words, strict=False)
        }
        run_kernel(kernel, buffers, sizes)


def _memory(address: int, elements: int, dtype: torch.dtype) -> torch.Tensor:
    """Return a flat tensor of the elements at an address."""
    content = (ctypes.c_char * (elements * dtype.itemsize)).from_address(address)
    return torch.frombuffer(content, dtype=dtype, count=elements)


def _elements(kernel: Kernel, buffer: str, sizes: Mapping[str, int]) -> int:
    """Return how many elements of a buffer the statements may reach; a seed has two."""
    found = 2 if buffer in kernel.seeds else 1
    for s in kernel.body:
        if isinstance(s, Load | Gather | Store) and s.buffer == buffer:
            last = _largest(kernel, s.index, sizes)
            if isinstance(s, Gather):
                last += evaluate(s.stride, sizes) * evaluate(s.extent, sizes)
            found = max(found, 1 + last)
    return found


def _largest(kernel: Kernel, index: AffineExpr, sizes: Mapping[str, int]) -> int:
    steps = [(evaluate(c, sizes), evaluate(kernel.extent(a), sizes)) for a, c in index.terms]
    return evaluate(index.const, sizes) + sum(max(0, c * (n - 1)) for c, n in steps)


@dataclass(frozen=True, eq=False)
class InterpretedBackend:
    """Schedules nothing, merges nothing. Its text is that of the kernel; `loaded` names kernels."""

    loaded: list[str] = field(default_factory=list)

    executor = "interpreter"
    contracts_products = False
    costs = TargetCosts(
        Machine(),
        max_concat_operands=4,
        eliminates_concats=True,
        splits_reductions=False,
        merges_equal_loops=True,
        max_contracted_rows=0,
        max_contracted_rows_by_columns=0,
        tiled_rows={},
        blocked_dtypes=frozenset(),
        blocked_rows={},
        streamed_rows={},
        max_chained_bytes=0,
        split_threshold=1.0,
        separate_rule=Rule.SLOWER_KERNEL,
    )

    def call_machine(self, measured: Machine) -> Machine:
        return measured

    def evaluate(self, kernel: Kernel) -> Evaluation:
        return Evaluation(None)

    def schedule(self, requests: Sequence[KernelRequest]) -> list[KernelCall | Reason]:
        kernels = [r.finish(r.kernel) for r in requests]
        return [KernelCall(Statements(k), tuple(map(symbol, k.symbols))) for k in kernels]

    def emit(self, scheduled: ScheduledKernel, exact: bool) -> str:
        return repr(scheduled.kernel)

    def load(
        self, emitted: Sequence[EmittedKernel], linking: Linking
    ) -> list[KernelLauncher | CompileError]:
        return [self._load(text) for _, text in emitted]

    def _load(self, text: str) -> KernelLauncher | CompileError:
        try:
            kernel = parse_kernel(text)
        except ParseError as e:
            return CompileError(f"{e}")
        self.loaded.append(kernel.name)
        return Interpreted(kernel)

    def launch_facts(self, call: KernelCall) -> LaunchFacts:
        return LaunchFacts(write_mask=None)  # a launch of its own, and memory of their own

    def load_groups(
        self, groups: Mapping[int, GroupedCalls], exact: bool, threads: int
    ) -> dict[int, LaunchGroup]:
        return {}

    def recorder(self, graph: Graph, plan: Plan) -> Recorder | None:
        return None

    def load_product(
        self, region: Region, storage: Mapping[Value, MemRef], machine: Machine, linking: Linking
    ) -> LoadedProduct | str | None:
        return None

    def predicted_us(self, call: KernelCall, nbytes: Dim, machine: Machine) -> float:
        return machine.call_us * len(call.scheduled.kernel.body)

    def timing_obstacle(self) -> str | None:
        return "an interpreter is not timed"

    def timing_key(self) -> tuple[str, ...]:
        return ()

    def variants(self, scheduled: ScheduledKernel, machine: Machine) -> list[ChosenSchedule]:
        return []

    def prune(
        self, default: EmittedKernel, variants: Sequence[EmittedKernel], threads: int
    ) -> list[EmittedKernel]:
        return []

    def time_calls(self, calls: Sequence[TimedCall]) -> list[float]:
        return [1.0 for _ in calls]
