"""Generate kernels: lower each region, run the kernel passes, schedule, emit text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tofuse.backends.llvm.emit import emit
from tofuse.backends.triton.emit import emit as emit_triton
from tofuse.config import Config
from tofuse.errors import CompileError
from tofuse.fusion.lower.axes import LoweringError
from tofuse.fusion.lower.lower_region import LoweredRegion, lower_region
from tofuse.ir.dims import Dim, symbol
from tofuse.ir.graph import Value, device_of
from tofuse.ir.kernel import Kernel
from tofuse.ir.nest import Nest
from tofuse.ir.region import Partition, Region
from tofuse.ir.schedule import Schedule, Target
from tofuse.ir.tile import GpuTarget, TileProgram
from tofuse.ops.check_kernel import check_kernel
from tofuse.runtime.cuda import capability
from tofuse.schedule.build_nest import build_nest
from tofuse.schedule.build_tiles import build_tiles
from tofuse.schedule.choose_schedule import choose_schedule
from tofuse.schedule.kernel_dedup import kernel_dedup
from tofuse.schedule.schedule_legality import Unschedulable

KernelPass = Callable[[Kernel], Kernel]
NestPass = Callable[[Nest], Nest]


@dataclass(frozen=True, eq=False)
class CodegenContext:
    """The state that all regions of a partition share: the machine, the options and the passes.

    `nontemporal` are the results whose stores bypass the caches. `kernel_passes` returns the
    passes for one lowered region on a device.
    """

    partition: Partition
    nontemporal: frozenset[Value]
    target: Target
    config: Config
    kernel_passes: Callable[[LoweredRegion, str, CodegenContext], Sequence[KernelPass]]
    nest_passes: Sequence[NestPass]


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
class RejectedRegion:
    """A region without a loop nest, such as a lone reduction of a broadcast tensor."""

    region: Region
    reason: str


@dataclass(frozen=True, eq=False)
class _ScheduledRegion:
    region: Region
    kernel: Kernel
    schedule: Schedule
    arguments: tuple[Value, ...]


def generate_kernel(region: Region, context: CodegenContext) -> GeneratedKernel | RejectedRegion:
    """Return the nest and the text of one region."""
    (generated,) = generate_kernels({region: None}, context)
    return generated


def generate_kernels(
    schedules: Mapping[Region, Schedule | None], context: CodegenContext
) -> list[GeneratedKernel | RejectedRegion]:
    """Return nests and texts; regions that differ only in sizes share one.

    If a region's schedule is None, the heuristics choose it. On a GPU, regions share no text and
    the heuristics choose every schedule.
    """
    on_gpu = [r for r in schedules if device_of(r.ops) != "cpu"]
    gpu_kernels = [_generate_gpu_kernel(r, context) for r in on_gpu]
    on_cpu = {r: s for r, s in schedules.items() if r not in on_gpu}
    results = [_schedule_region(r, s, context) for r, s in on_cpu.items()]
    rejected = [r for r in results if isinstance(r, RejectedRegion)]
    scheduled = [r for r in results if isinstance(r, _ScheduledRegion)]
    emitted: dict[Kernel, tuple[Nest, str, str | None] | str] = {}
    generated: list[GeneratedKernel] = []
    pairs = [(s.kernel, s.schedule) for s in scheduled]
    verify = context.config.verify  # then each region has a kernel of its own
    deduplicated = [kernel_dedup([p])[0] for p in pairs] if verify else kernel_dedup(pairs)
    for s, shared in zip(scheduled, deduplicated, strict=True):
        if shared.kernel not in emitted:
            emitted[shared.kernel] = _emit_kernel(shared.kernel, s.schedule, context)
        result = emitted[shared.kernel]
        if isinstance(result, str):
            rejected.append(RejectedRegion(s.region, result))
        else:
            nest, source, error = result
            generated.append(
                GeneratedKernel(s.region, nest, s.arguments, shared.sizes, source, error)
            )
    return [*generated, *rejected, *gpu_kernels]


def _lower(region: Region, context: CodegenContext) -> tuple[Kernel, tuple[Value, ...]]:
    """Return the kernel after all kernel passes, and its arguments; raises LoweringError."""
    part = context.partition
    lowered = lower_region(region, part.storage, rounded=part.rounded)
    kernel = lowered.kernel
    for kernel_pass in context.kernel_passes(lowered, device_of(region.ops), context):
        kernel = kernel_pass(kernel)
    return kernel, lowered.arguments


def _generate_gpu_kernel(
    region: Region, context: CodegenContext
) -> GeneratedKernel | RejectedRegion:
    try:
        kernel, arguments = _lower(region, context)
        check_kernel(kernel)
        version, multiprocessors = capability(device_of(region.ops))
        tiles = build_tiles(kernel, GpuTarget(multiprocessors, version))
    except (LoweringError, Unschedulable) as e:
        return RejectedRegion(region, str(e))
    sizes = tuple(symbol(s) for s in kernel.symbols)
    try:
        source = emit_triton(tiles, exact=context.config.precision == "eager")
    except CompileError as e:
        return GeneratedKernel(region, tiles, arguments, sizes, f"# {e}", str(e))
    return GeneratedKernel(region, tiles, arguments, sizes, source)


def _schedule_region(
    region: Region, schedule: Schedule | None, context: CodegenContext
) -> _ScheduledRegion | RejectedRegion:
    try:
        kernel, arguments = _lower(region, context)
    except LoweringError as e:
        return RejectedRegion(region, str(e))
    schedule = schedule or choose_schedule(kernel, context.target)
    return _ScheduledRegion(region, kernel, schedule, arguments)


def _emit_kernel(
    kernel: Kernel, schedule: Schedule, context: CodegenContext
) -> tuple[Nest, str, str | None] | str:
    """Return a nest, its text, and the error if emission fails; or why there is no nest."""
    check_kernel(kernel)  # 8 us per statement; compiling a statement takes 1000 us
    target = context.target
    try:
        nest = build_nest(kernel, schedule, repeat_reductions=True)
    except Unschedulable as e:
        return str(e)
    for nest_pass in context.nest_passes:
        nest = nest_pass(nest)
    contract = context.config.precision != "eager"
    try:
        text = emit(nest, contract=contract, avx512=target.avx512, native=target.native_lanes)
    except CompileError as e:
        return nest, f"; {e}", str(e)
    return nest, text, None
