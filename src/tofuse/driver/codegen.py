"""Region -> loop nest, or launches on a GPU, and their text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tofuse.backends.llvm.emit import emit
from tofuse.backends.triton.emit import emit as emit_triton
from tofuse.config import Config
from tofuse.errors import CompileError
from tofuse.fusion.host_scalars import mark_host_scalars
from tofuse.fusion.lower.axes import LoweringError
from tofuse.fusion.lower.coalesce import coalesce
from tofuse.fusion.lower.lower_region import lower_region
from tofuse.fusion.nontemporal import mark_nontemporal
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
from tofuse.schedule.prefetch import prefetch
from tofuse.schedule.schedule_legality import Unschedulable
from tofuse.schedule.unroll_axes import unroll_axes


@dataclass(frozen=True, eq=False)
class GeneratedKernel:
    """A region on its way to machine code; `broken` says why there will be none.

    Regions alike but for their sizes have one nest; `sizes` are this one's.
    """

    region: Region
    nest: Nest | TileProgram
    arguments: tuple[Value, ...]
    sizes: tuple[Dim, ...]
    source: str
    broken: str | None = None


@dataclass(frozen=True, eq=False)
class RejectedRegion:
    """A region that has no loop nest, such as a lone reduction of a broadcast tensor."""

    region: Region
    reason: str


@dataclass(frozen=True, eq=False)
class _ScheduledRegion:
    """A region's kernel, and the order of its loops."""

    region: Region
    kernel: Kernel
    schedule: Schedule
    arguments: tuple[Value, ...]


def generate_kernel(
    region: Region,
    part: Partition,
    streams: frozenset[Value],
    target: Target,
    config: Config,
) -> GeneratedKernel | RejectedRegion:
    """The nest and the text of one region."""
    (made,) = generate_kernels({region: None}, part, streams, target, config)
    return made


def generate_kernels(
    wanted: Mapping[Region, Schedule | None],
    part: Partition,
    streams: frozenset[Value],
    target: Target,
    config: Config,
) -> list[GeneratedKernel | RejectedRegion]:
    """Nests and texts, written once for regions that are alike; None: the usual schedule.

    For a GPU each region's text is its own, and there are no other schedules.
    """
    there = [r for r in wanted if device_of(r.ops) != "cpu"]
    tiled = [_generate_gpu_kernel(r, part, streams, config) for r in there]
    here = {r: s for r, s in wanted.items() if r not in there}
    made = [_schedule_region(r, part, streams, target, s) for r, s in here.items()]
    unfit = [m for m in made if isinstance(m, RejectedRegion)]
    scheduled = [m for m in made if isinstance(m, _ScheduledRegion)]
    written: dict[Kernel, tuple[Nest, str, str | None] | str] = {}
    built: list[GeneratedKernel] = []
    pairs = [(m.kernel, m.schedule) for m in scheduled]
    alike = [kernel_dedup([p])[0] for p in pairs] if config.verify else kernel_dedup(pairs)
    for m, shared in zip(scheduled, alike, strict=True):
        if shared.kernel not in written:
            written[shared.kernel] = _emit_kernel(shared.kernel, m.schedule, target, config)
        found = written[shared.kernel]
        if isinstance(found, str):
            unfit.append(RejectedRegion(m.region, found))
        else:
            nest, source, broken = found
            built.append(GeneratedKernel(m.region, nest, m.arguments, shared.sizes, source, broken))
    return [*built, *unfit, *tiled]


def _generate_gpu_kernel(
    region: Region,
    part: Partition,
    streams: frozenset[Value],
    config: Config,
) -> GeneratedKernel | RejectedRegion:
    """The launches and the text of a region on a GPU."""
    exact, device = config.precision == "eager", device_of(region.ops)
    try:
        lowered = lower_region(region, part.storage, rounded=part.rounded)
        kernel = mark_nontemporal(coalesce(lowered.kernel), lowered.arguments, streams)
        kernel = mark_host_scalars(kernel, lowered.arguments, device)
        check_kernel(kernel)
        version, multiprocessors = capability(device)
        tiles = build_tiles(kernel, GpuTarget(multiprocessors, version))
    except (LoweringError, Unschedulable) as e:
        return RejectedRegion(region, str(e))
    sizes = tuple(symbol(s) for s in kernel.symbols)
    try:
        source = emit_triton(tiles, exact=exact)
    except CompileError as e:
        return GeneratedKernel(region, tiles, lowered.arguments, sizes, f"# {e}", str(e))
    return GeneratedKernel(region, tiles, lowered.arguments, sizes, source)


def _schedule_region(
    region: Region,
    part: Partition,
    streams: frozenset[Value],
    target: Target,
    schedule: Schedule | None,
) -> _ScheduledRegion | RejectedRegion:
    try:
        lowered = lower_region(region, part.storage, rounded=part.rounded)
        kernel = mark_nontemporal(coalesce(lowered.kernel), lowered.arguments, streams)
    except LoweringError as e:
        return RejectedRegion(region, str(e))
    kernel = unroll_axes(kernel, target)
    chosen = schedule or choose_schedule(kernel, target)
    return _ScheduledRegion(region, kernel, chosen, lowered.arguments)


def _emit_kernel(
    kernel: Kernel, schedule: Schedule, target: Target, config: Config
) -> tuple[Nest, str, str | None] | str:
    """The loops of a kernel, their text, and why that is none; or why there are no loops."""
    check_kernel(kernel)  # 8 us a statement, where compiling one takes 1000
    try:
        nest = prefetch(build_nest(kernel, schedule, repeat_reductions=True))
    except Unschedulable as e:
        return str(e)
    try:
        contract = config.precision != "eager"
        return (
            nest,
            emit(nest, contract=contract, avx512=target.avx512, native=target.native_lanes),
            None,
        )
    except CompileError as e:
        return nest, f"; {e}", str(e)
