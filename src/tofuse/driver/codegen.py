"""Generate kernels: take what the cost oracle lowered and scheduled, and emit text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Union

from tofuse.backends.llvm.emit import emit
from tofuse.backends.triton.emit import emit as emit_triton
from tofuse.config import Config
from tofuse.driver.oracle import CostOracle
from tofuse.errors import CompileError
from tofuse.fusion.lower.axes import LoweringError
from tofuse.fusion.lowering_memo import SharedKernel
from tofuse.fusion.nontemporal import mark_nontemporal
from tofuse.ir.dims import Dim
from tofuse.ir.graph import Value, device_of
from tofuse.ir.kernel import Kernel, Uniform
from tofuse.ir.nest import Nest
from tofuse.ir.schedule import Schedule
from tofuse.ir.tile import GpuTarget, TileProgram, TilingChoice
from tofuse.ops.check_kernel import check_kernel
from tofuse.region import Partition, Region
from tofuse.runtime.cuda import capability
from tofuse.schedule.build_nest import build_nest
from tofuse.schedule.build_tiles import BY_HEURISTICS, build_tiles
from tofuse.schedule.kernel_dedup import DedupedKernel, kernel_dedup, merge_gpu_kernels
from tofuse.schedule.schedule_legality import Unschedulable
from tofuse.schedule.split_launches import Updates

NestPass = Callable[[Nest], Nest]
ChosenSchedule = Union[Schedule, TilingChoice, None]  # noqa: UP007  (evaluated at run time)


@dataclass(frozen=True, eq=False)
class CodegenContext:
    """The state that all regions of a partition share: the oracle, the options and the passes.

    `nontemporal` are the results whose stores bypass the caches. `mutations` are pairs of an
    argument and the new value that the program writes into it.
    """

    partition: Partition
    nontemporal: frozenset[Value]
    oracle: CostOracle
    config: Config
    nest_passes: Sequence[NestPass]
    mutations: frozenset[tuple[Value, Value]] = frozenset()


@dataclass(frozen=True, eq=False)
class GeneratedKernel:
    """A region with its nest and text; `error` says why there is no text.

    Regions that differ only in sizes share one nest; `sizes` are those of this region.
    """

    region: Region
    nest: Nest | TileProgram
    arguments: tuple[Value, ...]
    sizes: tuple[Dim, ...]
    source: str
    error: str | None = None


@dataclass(frozen=True, eq=False)
class _ScheduledRegion:
    """A region's kernel with its schedule, and the nest if the oracle kept it."""

    region: Region
    kernel: Kernel
    schedule: Schedule
    arguments: tuple[Value, ...]
    nest: Nest | None


def generate_kernels(
    schedules: Mapping[Region, ChosenSchedule], context: CodegenContext
) -> tuple[list[GeneratedKernel], dict[Region, str]]:
    """Return nests and texts; regions that differ only in sizes share one.

    Also return why a region has no loop nest, such as a lone reduction of a broadcast tensor.
    If a region's schedule is None, the heuristics choose it.
    """
    on_gpu = {r: schedules[r] for r in schedules if device_of(r.ops) != "cpu"}
    gpu_kernels, rejected = _generate_gpu_kernels(on_gpu, context)
    scheduled: list[_ScheduledRegion] = []
    for region in (r for r in schedules if device_of(r.ops) == "cpu"):
        schedule = schedules[region]
        assert not isinstance(schedule, TilingChoice)
        try:
            scheduled.append(_schedule_region(region, schedule, context))
        except (LoweringError, Unschedulable) as e:
            rejected[region] = str(e)
    emitted: dict[Kernel, GeneratedKernel] = {}  # for the first region
    generated: list[GeneratedKernel] = []
    pairs = [(s.kernel, s.schedule) for s in scheduled]
    verify = context.config.verify  # then each region has a kernel of its own
    deduplicated = [kernel_dedup([p])[0] for p in pairs] if verify else kernel_dedup(pairs)
    for s, shared in zip(scheduled, deduplicated, strict=True):
        try:
            if shared.kernel not in emitted:
                emitted[shared.kernel] = _emit_kernel(s, shared, context)
        except Unschedulable as e:
            rejected[s.region] = str(e)
            continue
        first = emitted[shared.kernel]
        own = replace(first, region=s.region, arguments=s.arguments, sizes=shared.sizes)
        generated.append(own)
    return [*generated, *gpu_kernels], rejected


def _finish(
    kernel: Kernel, shared: SharedKernel, region: Region, nontemporal: frozenset[Value]
) -> Kernel:
    """Return the shared kernel with the name, the random streams and the stores of this region."""
    body = kernel.body
    if any(first != own for first, own in shared.streams.items()):
        body = tuple(
            replace(s, stream=shared.streams[s.stream]) if isinstance(s, Uniform) else s
            for s in body
        )
    kernel = replace(kernel, name=region.name, body=body)
    return mark_nontemporal(kernel, shared.arguments, nontemporal)


@dataclass(frozen=True, eq=False)
class LoweredRegion:
    """A region on a GPU with the kernel that it may share, its arguments and its sizes."""

    region: Region
    kernel: Kernel
    arguments: tuple[Value, ...]
    sizes: tuple[Dim, ...]


def lower_for_gpu(
    regions: Iterable[Region], context: CodegenContext
) -> tuple[list[LoweredRegion], dict[Region, str]]:
    """Return the kernels of regions on a GPU, and why a region has none."""
    part = context.partition
    rejected: dict[Region, str] = {}
    lowered: list[tuple[Region, Kernel, tuple[Value, ...]]] = []
    for region in regions:
        try:
            shared = context.oracle.lowerings.lower(region, part.aliases.memrefs, part.rounded)
        except LoweringError as e:
            rejected[region] = str(e)
            continue
        kernel = _finish(shared.kernel, shared, region, context.nontemporal)
        lowered.append((region, kernel, shared.arguments))
    merged = merge_gpu_kernels([kernel for _, kernel, _ in lowered])
    found = [
        LoweredRegion(region, kernel, arguments, sizes)
        for (region, _, arguments), (kernel, sizes) in zip(lowered, merged, strict=True)
    ]
    return found, rejected


def _generate_gpu_kernels(
    schedules: Mapping[Region, ChosenSchedule], context: CodegenContext
) -> tuple[list[GeneratedKernel], dict[Region, str]]:
    """Return the launches and texts of regions on a GPU, and why a region has none."""
    lowered, rejected = lower_for_gpu(schedules, context)
    bounds = _size_bounds([(x.kernel, x.sizes) for x in lowered])
    emitted: dict[tuple[Kernel, str, Updates, TilingChoice], GeneratedKernel] = {}
    generated: list[GeneratedKernel] = []
    for x in lowered:
        names = [(v, b.name) for v, b in zip(x.arguments, x.kernel.buffers, strict=True)]
        updates = frozenset(
            (a, b) for v, a in names for w, b in names if (v, w) in context.mutations
        )
        schedule = schedules[x.region]
        choice = schedule if isinstance(schedule, TilingChoice) else BY_HEURISTICS
        key = x.kernel, device_of(x.region.ops), updates, choice
        try:
            if key not in emitted:
                emitted[key] = _emit_gpu_kernel(x, bounds[x.kernel], updates, choice, context)
        except Unschedulable as e:
            rejected[x.region] = str(e)
            continue
        own = replace(emitted[key], region=x.region, arguments=x.arguments, sizes=x.sizes)
        generated.append(own)
    return generated, rejected


def _size_bounds(
    merged: Sequence[tuple[Kernel, tuple[Dim, ...]]],
) -> dict[Kernel, dict[str, int]]:
    """Return the largest value of each size argument of a kernel, if all its values are known."""
    found: dict[Kernel, dict[str, int]] = {}
    for kernel, sizes in merged:
        bounds = found.setdefault(kernel, {})
        for name, size in zip(kernel.symbols, sizes, strict=True):
            if isinstance(size, int):
                bounds[name] = max(size, bounds.get(name, 0))
    return found


def gpu_target(device: str) -> GpuTarget:
    """Return the GPU to generate code for."""
    version, multiprocessors = capability(device)
    return GpuTarget(multiprocessors, version)


def _emit_gpu_kernel(
    lowered: LoweredRegion,
    bounds: Mapping[str, int],
    updates: Updates,
    choice: TilingChoice,
    context: CodegenContext,
) -> GeneratedKernel:
    kernel, region = lowered.kernel, lowered.region
    check_kernel(kernel)
    target = gpu_target(device_of(region.ops))
    build = partial(build_tiles, kernel, target, bounds=bounds, updates=updates)
    try:
        tiles = build(choice=choice)
    except Unschedulable:
        if choice is BY_HEURISTICS:
            raise
        tiles = build()  # the choice was measured for a kernel of the region alone
    error = None
    try:
        source = emit_triton(tiles, exact=context.config.precision == "eager")
    except CompileError as e:
        source, error = f"# {e}", str(e)
    return GeneratedKernel(region, tiles, (), (), source, error)


def _schedule_region(
    region: Region, schedule: Schedule | None, context: CodegenContext
) -> _ScheduledRegion:
    part = context.partition
    shared = context.oracle.lowerings.lower(region, part.aliases.memrefs, part.rounded)
    kept = context.oracle.schedule(shared.kernel)
    kernel = _finish(kept.kernel, shared, region, context.nontemporal)
    nest = None
    if kept.nest is not None and kernel.body is kept.kernel.body:
        nest = replace(kept.nest, kernel=kernel) if schedule in (None, kept.schedule) else None
    return _ScheduledRegion(region, kernel, schedule or kept.schedule, shared.arguments, nest)


def _emit_kernel(
    s: _ScheduledRegion, shared: DedupedKernel, context: CodegenContext
) -> GeneratedKernel:
    """Return the nest and the text of the kernel that a region shares with others."""
    check_kernel(shared.kernel)  # 8 us per statement; compiling a statement takes 1000 us
    target = context.oracle.target
    nest = s.nest if shared.kernel is s.kernel else None
    nest = nest or build_nest(shared.kernel, s.schedule, repeat_reductions=True)
    for nest_pass in context.nest_passes:
        nest = nest_pass(nest)
    contract, error = context.config.precision != "eager", None
    try:
        text = emit(
            nest,
            contract=contract,
            avx512=target.avx512,
            native=target.native_lanes,
            saturating_casts=target.saturating_casts,
        )
    except CompileError as e:
        text, error = f"; {e}", str(e)
    return GeneratedKernel(s.region, nest, s.arguments, shared.sizes, text, error)
