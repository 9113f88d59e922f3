"""Region -> loop nest, or launches on a GPU, and their text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tofuse.backends.llvm.emit import emit
from tofuse.backends.triton.emit import emit as emit_triton
from tofuse.config import Config
from tofuse.errors import CompileError
from tofuse.fusion.host_scalars import with_hosts
from tofuse.fusion.lower.axes import Misaligned
from tofuse.fusion.lower.coalesce import coalesce
from tofuse.fusion.lower.lower_region import lower
from tofuse.fusion.nontemporal import with_streams
from tofuse.ir.dims import Dim, symbol
from tofuse.ir.graph import Value, device_of
from tofuse.ir.kernel import Kernel
from tofuse.ir.nest import Nest
from tofuse.ir.region import Partition, Region
from tofuse.ir.schedule import Schedule, Target
from tofuse.ir.tile import GpuTarget, TileProgram
from tofuse.ops.check_kernel import verify
from tofuse.runtime.cuda import capability
from tofuse.schedule.build_nest import build_nest
from tofuse.schedule.build_tiles import build_tiles
from tofuse.schedule.choose_schedule import choose_schedule
from tofuse.schedule.kernel_dedup import share
from tofuse.schedule.loop_orders import Unschedulable
from tofuse.schedule.prefetch import with_prefetch
from tofuse.schedule.unroll_axes import write_out


@dataclass(frozen=True, eq=False)
class Built:
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
class Unfit:
    """A region that has no loop nest, such as a lone reduction of a broadcast tensor."""

    region: Region
    reason: str


@dataclass(frozen=True, eq=False)
class _Scheduled:
    """A region's kernel, and the order of its loops."""

    region: Region
    kernel: Kernel
    schedule: Schedule
    arguments: tuple[Value, ...]


def build_region(
    region: Region,
    part: Partition,
    streams: frozenset[Value],
    target: Target,
    config: Config,
) -> Built | Unfit:
    """The nest and the text of one region."""
    (made,) = build_regions({region: None}, part, streams, target, config)
    return made


def build_regions(
    wanted: Mapping[Region, Schedule | None],
    part: Partition,
    streams: frozenset[Value],
    target: Target,
    config: Config,
) -> list[Built | Unfit]:
    """Nests and texts, written once for regions that are alike; None: the usual schedule.

    For a GPU each region's text is its own, and there are no other schedules.
    """
    there = [r for r in wanted if device_of(r.ops) != "cpu"]
    tiled = [_build_tiled(r, part, streams, config) for r in there]
    here = {r: s for r, s in wanted.items() if r not in there}
    made = [_schedule(r, part, streams, target, s) for r, s in here.items()]
    unfit = [m for m in made if isinstance(m, Unfit)]
    scheduled = [m for m in made if isinstance(m, _Scheduled)]
    written: dict[Kernel, tuple[Nest, str, str | None] | str] = {}
    built: list[Built] = []
    pairs = [(m.kernel, m.schedule) for m in scheduled]
    alike = [share([p])[0] for p in pairs] if config.verify else share(pairs)
    for m, shared in zip(scheduled, alike, strict=True):
        if shared.kernel not in written:
            written[shared.kernel] = _write(shared.kernel, m.schedule, target, config)
        found = written[shared.kernel]
        if isinstance(found, str):
            unfit.append(Unfit(m.region, found))
        else:
            nest, source, broken = found
            built.append(Built(m.region, nest, m.arguments, shared.sizes, source, broken))
    return [*built, *unfit, *tiled]


def _build_tiled(
    region: Region,
    part: Partition,
    streams: frozenset[Value],
    config: Config,
) -> Built | Unfit:
    """The launches and the text of a region on a GPU."""
    exact, device = config.precision == "eager", device_of(region.ops)
    try:
        lowered = lower(region, part.storage, halves=part.halves)
        kernel = with_streams(coalesce(lowered.kernel), lowered.arguments, streams)
        kernel = with_hosts(kernel, lowered.arguments, device)
        verify(kernel)
        version, multiprocessors = capability(device)
        tiles = build_tiles(kernel, GpuTarget(multiprocessors, version))
    except (Misaligned, Unschedulable) as e:
        return Unfit(region, str(e))
    sizes = tuple(symbol(s) for s in kernel.symbols)
    try:
        source = emit_triton(tiles, exact=exact)
    except CompileError as e:
        return Built(region, tiles, lowered.arguments, sizes, f"# {e}", str(e))
    return Built(region, tiles, lowered.arguments, sizes, source)


def _schedule(
    region: Region,
    part: Partition,
    streams: frozenset[Value],
    target: Target,
    schedule: Schedule | None,
) -> _Scheduled | Unfit:
    try:
        lowered = lower(region, part.storage, halves=part.halves)
        kernel = with_streams(coalesce(lowered.kernel), lowered.arguments, streams)
    except Misaligned as e:
        return Unfit(region, str(e))
    kernel = write_out(kernel, target)
    chosen = schedule or choose_schedule(kernel, target)
    return _Scheduled(region, kernel, chosen, lowered.arguments)


def _write(
    kernel: Kernel, schedule: Schedule, target: Target, config: Config
) -> tuple[Nest, str, str | None] | str:
    """The loops of a kernel, their text, and why that is none; or why there are no loops."""
    verify(kernel)  # 8 us a statement, where compiling one takes 1000
    try:
        nest = with_prefetch(build_nest(kernel, schedule, repeat=True))
    except Unschedulable as e:
        return str(e)
    try:
        contract = config.precision != "eager"
        return nest, emit(nest, contract=contract, avx512=target.avx512, native=target.native), None
    except CompileError as e:
        return nest, f"; {e}", str(e)
