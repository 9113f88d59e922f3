"""A GPU as a target: a kernel is a tile program, its text Triton."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple

import torch

from tofuse.analysis.alias import MemRef
from tofuse.backends.cuda.cost.call_costs import CALL_COSTS
from tofuse.backends.cuda.cost.gpu_machine import GpuMachine, gpu_machine
from tofuse.backends.cuda.cost.tile_cost import gpu_cost, tile_program_us
from tofuse.backends.cuda.load_group import load_groups
from tofuse.backends.cuda.load_tiles import compile_programs, group_limit, tiles_of, triton_module
from tofuse.backends.cuda.prune_tilings import prune_tilings
from tofuse.backends.cuda.record_graph import graph_replay, recordable_device
from tofuse.backends.cuda.runtime.cuda import CudaLauncher, capability, device_index, device_name
from tofuse.backends.cuda.runtime.gpu_driver import gpu_driver
from tofuse.backends.cuda.runtime.gpu_timing import interleaved_gpu_us
from tofuse.backends.cuda.schedule.build_tiles import build_tiles
from tofuse.backends.cuda.schedule.split_launches import separate_scalar_updates
from tofuse.backends.cuda.schedule.tiling_variants import tiling_variants
from tofuse.backends.cuda.triton.emit import emit
from tofuse.backends.cuda.triton.load import triton_version
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
from tofuse.cost.thresholds import FEW_CONCAT_OPERANDS, GPU_CANDIDATES_TIMING_S, GPU_SPLIT_THRESHOLD
from tofuse.errors import CompileError
from tofuse.ir.dims import Dim, size_hint, symbol
from tofuse.ir.executor import TRITON
from tofuse.ir.graph import Graph, Value
from tofuse.ir.kernel import Kernel
from tofuse.ir.launch_facts import LaunchFacts
from tofuse.ir.plan import Plan
from tofuse.ir.region import Region
from tofuse.ir.rules import Reason, Rule
from tofuse.ir.schedule import ScheduledKernel
from tofuse.ir.tile import GpuTarget, TileNest, TileProgram, TilingChoice
from tofuse.schedule.alias_legality import legal_tile_aliases
from tofuse.schedule.kernel_dedup import merge_gpu_kernels
from tofuse.schedule.schedule_legality import Unschedulable

CAPTURED = "tune='measure' times nothing while a CUDA graph is captured"
Bounds = Mapping[str, int]


class EvaluatedKernel(NamedTuple):
    """A kernel's evaluation, with its launches if it has any."""

    evaluation: Evaluation
    tiles: TileProgram | None = None


@dataclass(frozen=True, eq=False)
class CudaBackend:
    """The GPU of a device such as "cuda:0"; an H200, if there is none.

    Builds the tiles of a kernel once, for its cost; code generation takes the same tiles.
    """

    device: str
    evaluated: dict[Kernel, EvaluatedKernel] = field(default_factory=dict)

    executor = TRITON

    @property
    def contracts_products(self) -> bool:
        return self.device.startswith("cuda")  # not of devices without kernels

    @cached_property
    def target(self) -> GpuTarget:
        """The GPU to generate code for."""
        version, multiprocessors = capability(self.device)
        return GpuTarget(multiprocessors, version)

    @cached_property
    def machine(self) -> GpuMachine:
        """The costs of the GPU."""
        return gpu_machine(device_name(self.device), *capability(self.device))

    @property
    def costs(self) -> TargetCosts:
        return TargetCosts(
            CALL_COSTS,
            max_concat_operands=FEW_CONCAT_OPERANDS,
            eliminates_concats=False,
            splits_reductions=False,
            merges_equal_loops=False,
            max_contracted_rows=0,
            max_contracted_rows_by_columns=0,
            tiled_rows={},
            blocked_dtypes=frozenset(),
            blocked_rows={},
            streamed_rows={},
            max_chained_bytes=0,
            split_threshold=GPU_SPLIT_THRESHOLD,
            separate_rule=Rule.SLOWER_KERNEL,
        )

    def call_machine(self, measured: Machine) -> Machine:
        return CALL_COSTS

    def evaluate(self, kernel: Kernel) -> Evaluation:
        if kernel not in self.evaluated:
            try:
                tiles = build_tiles(kernel, self.target)
                evaluation = Evaluation(None, gpu_cost(tiles, self.machine))
                self.evaluated[kernel] = EvaluatedKernel(evaluation, tiles)
            except Unschedulable as e:
                self.evaluated[kernel] = EvaluatedKernel(Evaluation(e.reason))
        return self.evaluated[kernel].evaluation

    def schedule(self, requests: Sequence[KernelRequest]) -> list[KernelCall | Reason]:
        merged = merge_gpu_kernels([r.finish(r.kernel) for r in requests])
        bounds = _size_bounds(merged)
        built: dict[object, TileProgram | Reason] = {}
        calls: list[KernelCall | Reason] = []
        for r, (kernel, sizes) in zip(requests, merged, strict=True):
            key = kernel, r.updates, r.schedule
            if key not in built:
                built[key] = self._build(kernel, bounds[kernel], r)
            tiles = built[key]
            calls.append(tiles if isinstance(tiles, Reason) else KernelCall(tiles, sizes))
        return calls

    def _build(
        self, kernel: Kernel, bounds: Bounds, request: KernelRequest
    ) -> TileProgram | Reason:
        tiles = self.evaluated[request.kernel].tiles if request.kernel in self.evaluated else None
        if tiles is not None and _is_built_alike(request, kernel, bounds):
            return _renamed(tiles, kernel)
        build = partial(build_tiles, kernel, self.target, bounds=bounds, updates=request.updates)
        if request.schedule is not None:
            assert isinstance(request.schedule, TilingChoice)
            with suppress(Unschedulable):  # it was measured for a kernel of the region alone
                return build(choice=request.schedule)
        try:
            return build()
        except Unschedulable as e:
            return e.reason

    def emit(self, scheduled: ScheduledKernel, exact: bool) -> str:
        return emit(tiles_of(scheduled), exact=exact)

    def load(
        self, emitted: Sequence[EmittedKernel], linking: Linking
    ) -> list[KernelLauncher | CompileError]:
        modules = compile_programs(emitted, self.target.capability, linking.threads)
        loaded: dict[TileProgram, CudaLauncher | CompileError] = {}
        for x in emitted:
            # a text does not say all: sizes without a mask, types of pointers, warps
            tiles = tiles_of(x.scheduled)
            if tiles in loaded:
                continue
            try:
                module = modules.get(tiles) or triton_module(x, self.target.capability)
                parameters = [spec.parameters for spec in module.specs]
                device = device_index(self.device)
                loaded[tiles] = CudaLauncher(tiles.call, parameters, module.binary, device)
            except CompileError as e:
                loaded[tiles] = e
        return [loaded[tiles_of(x.scheduled)] for x in emitted]

    def launch_facts(self, call: KernelCall) -> LaunchFacts:
        tiles = tiles_of(call.scheduled)
        limit = group_limit(tiles)
        alone = limit < 2 or not all(isinstance(n, int) for n in call.sizes)
        written = (
            None if alone else tuple(b.role not in ("in", "host") for b in tiles.kernel.buffers)
        )
        aligned = tiles.call.aligned_sizes
        sizes = tuple(k for k, symbol in enumerate(tiles.kernel.symbols) if symbol in aligned)
        return LaunchFacts(written, legal_tile_aliases(tiles), limit, sizes)

    def load_groups(
        self, groups: Mapping[int, GroupedCalls], exact: bool, threads: int
    ) -> dict[int, LaunchGroup]:
        return load_groups(groups, self.device, exact, threads)

    def recorder(self, graph: Graph, plan: Plan) -> Recorder | None:
        if recordable_device(graph, plan) != self.device:
            return None
        return partial(graph_replay, device=self.device)

    def load_product(
        self, region: Region, storage: Mapping[Value, MemRef], machine: Machine, linking: Linking
    ) -> LoadedProduct | str | None:
        return None

    def predicted_us(self, call: KernelCall, nbytes: Dim, machine: Machine) -> float:
        """Return the predicted time; of a kernel for several sizes, from the bytes alone."""
        if call.sizes == tuple(map(symbol, call.scheduled.kernel.symbols)):
            return tile_program_us(tiles_of(call.scheduled), self.machine)
        return self.machine.launch_us + size_hint(nbytes) / self.machine.memory_rate / 1e3

    def timing_obstacle(self) -> str | None:
        return CAPTURED if gpu_driver().is_capturing() else None

    def timing_key(self) -> tuple[str, ...]:
        return repr(self.target), device_name(self.device), triton_version(), torch.__version__

    def variants(self, scheduled: ScheduledKernel, machine: Machine) -> list[ChosenSchedule]:
        return [p.choice for p in tiling_variants(tiles_of(scheduled), self.target)]

    def prune(
        self, default: EmittedKernel, variants: Sequence[EmittedKernel], threads: int
    ) -> list[EmittedKernel]:
        return prune_tilings(default, variants, self.machine, threads)

    def time_calls(self, calls: Sequence[TimedCall]) -> list[float]:
        return interleaved_gpu_us(calls, device_index(self.device), GPU_CANDIDATES_TIMING_S)


def _is_built_alike(request: KernelRequest, kernel: Kernel, bounds: Bounds) -> bool:
    """Whether the tiles of the requested kernel, before it was finished, are those of `kernel`."""
    before = request.kernel
    return (
        request.schedule is None
        and not bounds
        and kernel.body is before.body
        and kernel.buffers == before.buffers
        and len(separate_scalar_updates(kernel, request.updates)) == 1
    )


def _renamed(tiles: TileProgram, kernel: Kernel) -> TileProgram:
    """Return the tiles of a kernel that differs in its name."""
    before = tiles.kernel.name

    def renamed(nest: TileNest) -> TileNest:
        name = kernel.name + nest.kernel.name.removeprefix(before)
        return replace(nest, kernel=replace(nest.kernel, name=name))

    return replace(tiles, kernel=kernel, nests=tuple(map(renamed, tiles.nests)))


def _size_bounds(merged: Sequence[tuple[Kernel, tuple[Dim, ...]]]) -> dict[Kernel, dict[str, int]]:
    """Return the largest value of each size argument of a kernel, if all its values are known."""
    found: dict[Kernel, dict[str, int]] = {}
    for kernel, sizes in merged:
        bounds = found.setdefault(kernel, {})
        for name, size in zip(kernel.symbols, sizes, strict=True):
            if isinstance(size, int):
                bounds[name] = max(size, bounds.get(name, 0))
    return found
