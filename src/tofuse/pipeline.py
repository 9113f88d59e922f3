"""The compiler, top to bottom: from a captured graph to a callable and a report."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tofuse.backends.aten.region import graph_runner, region_runner
from tofuse.backends.llvm.emit import emit
from tofuse.backends.llvm.load import bind_threads, host_target, load
from tofuse.backends.triton.emit import emit as emit_triton
from tofuse.backends.triton.emit import parameters
from tofuse.backends.triton.load import Launch as TritonLaunch
from tofuse.backends.triton.load import load as load_triton
from tofuse.capture.convert import AtenGraph, Captured, convert
from tofuse.config import Config
from tofuse.errors import CaptureError, CompileError
from tofuse.fusion.axes import Misaligned
from tofuse.fusion.coalesce import coalesce
from tofuse.fusion.cost import Machine
from tofuse.fusion.hosts import device_of, with_hosts
from tofuse.fusion.lower import lower
from tofuse.fusion.partition import partition
from tofuse.fusion.storage import is_view
from tofuse.fusion.streams import streamed, with_streams
from tofuse.ir.dims import Dim, symbol, symbols_of
from tofuse.ir.graph import Graph, Value
from tofuse.ir.kernel import Kernel
from tofuse.ir.loops import Nest
from tofuse.ir.parse import parse_graph
from tofuse.ir.region import Partition, Region
from tofuse.ir.region_text import show_partition
from tofuse.ir.schedule import Target
from tofuse.ir.show import show_graph
from tofuse.ir.tiles import GpuTarget, TileProgram
from tofuse.ops.kernel_verify import verify
from tofuse.ops.verify import verify as verify_graph
from tofuse.passes import run_passes
from tofuse.report.model import (
    GraphReport,
    KernelReport,
    LibraryCall,
    RegionReport,
    bytes_before,
    region_bytes,
)
from tofuse.report.repro import write_repro
from tofuse.report.stages import Stages
from tofuse.runtime.build import KernelCall, Signature, build_plan
from tofuse.runtime.cuda import CudaLauncher, capability, device_index
from tofuse.runtime.execute import Run, load_plan
from tofuse.runtime.launch import Launcher, find_openmp, thread_count
from tofuse.runtime.pool import POOL
from tofuse.schedule.choose import choose_schedule
from tofuse.schedule.nest import Unschedulable, build_nest
from tofuse.schedule.prefetch import with_prefetch
from tofuse.schedule.tile_nest import build_tiles

Keep = Callable[[GraphReport], None]


def compile_graph(gm: AtenGraph, phase: str, config: Config, keep: Keep) -> Run:
    """A callable for an ATen graph; PyTorch runs the whole of it where it cannot be captured."""
    try:
        captured = convert(gm, phase)
    except CaptureError as e:
        keep(GraphReport(phase, notes=(f"the whole graph runs through PyTorch: {e}",)))
        return graph_runner(gm)
    return compile_captured(captured, phase, config, keep)


def compile_captured(captured: Captured, phase: str, config: Config, keep: Keep) -> Run:
    """A callable for a captured program: flat arguments in one list to a list of results."""
    start = time.perf_counter()
    stages = Stages(phase, config.show, config.dump)
    graph = run_passes(captured.graph)
    stages.text("graph", lambda: show_graph(graph))
    target = host_target(thread_count())
    part = partition(graph, lambda kernel: misfit(kernel, target), Machine(), gpu_misfit)
    streams = streamed(part)
    made = [_build(r, part, streams, target, config) for r in part.regions if not r.library]
    built = [b for b in made if isinstance(b, Built)]
    launchers, calls, broken = _load(built, part, config)
    broken += [
        f"{u.region.name} runs through PyTorch: {u.reason}" for u in made if isinstance(u, Unfit)
    ]
    stages.text("regions", lambda: show_partition(part))
    stages.text("loops", lambda: "\n".join(f"{b.nest.kernel!r}\n{b.nest!r}" for b in built))
    stages.text("source", lambda: "\n".join(b.source for b in built))
    plan = build_plan(part, _signature(captured, part.graph), calls)
    stages.text("plan", lambda: repr(plan))
    fallbacks = {
        f"region{k}": region_runner(r)
        for k, r in enumerate(part.regions)
        if not r.library and r not in calls
    }
    run = load_plan(plan, launchers, [t for _, t in captured.constants], fallbacks)
    elapsed = 1e3 * (time.perf_counter() - start)
    running = [b for b in built if b.region in calls]
    keep(_report(phase, captured.graph, part, running, elapsed, repr(plan), broken))
    return run


def compile_text(text: str, config: Config, keep: Keep = lambda report: None) -> Run:
    """A callable for the text of a graph: its inputs, then its sizes by name, in one list."""
    graph = parse_graph(text)
    verify_graph(graph)
    values = (*graph.inputs, *(r for op in graph.ops for r in op.results))
    names = sorted({s for v in values for d in (*v.shape, *v.layout) for s in symbols_of(d)})
    arguments: tuple[Value | Dim, ...] = (*graph.inputs, *(symbol(s) for s in names))
    places = {s: ("argument", k, 0) for k, s in enumerate(names, len(graph.inputs))}
    captured = Captured(graph, arguments, graph.outputs, (), places)
    return compile_captured(captured, graph.name, config, keep)


def misfit(kernel: Kernel, target: Target) -> str | None:
    """Why a kernel has no loop nest; None where it has."""
    try:
        build_nest(kernel, choose_schedule(kernel, target))
    except Unschedulable as e:
        return str(e)
    return None


def gpu_misfit(kernel: Kernel) -> str | None:
    """The same on a GPU."""
    try:
        build_tiles(kernel, GpuTarget())
    except Unschedulable as e:
        return str(e)
    return None


@dataclass(frozen=True, eq=False)
class Built:
    """A region on its way to machine code; `broken` says why there will be none."""

    region: Region
    nest: Nest | TileProgram
    arguments: tuple[Value, ...]
    source: str
    broken: str | None = None


@dataclass(frozen=True, eq=False)
class Unfit:
    """A region that has no loop nest, such as a lone reduction of a broadcast tensor."""

    region: Region
    reason: str


def _build(
    region: Region, part: Partition, streams: frozenset[Value], target: Target, config: Config
) -> Built | Unfit:
    exact = config.precision == "eager"
    try:
        lowered = lower(region, part.storage, exact=exact)
        kernel = with_streams(coalesce(lowered.kernel), lowered.arguments, streams)
        kernel = with_hosts(kernel, lowered.arguments, device_of(region.ops))
        verify(kernel)  # 8 us a statement, where compiling one takes 1000
        nest = _scheduled(kernel, device_of(region.ops), target)
    except (Misaligned, Unschedulable) as e:
        return Unfit(region, str(e))
    try:
        source = _source(nest, target, exact)
    except CompileError as e:
        return Built(region, nest, lowered.arguments, f"; {e}", str(e))
    return Built(region, nest, lowered.arguments, source)


def _scheduled(kernel: Kernel, device: str, target: Target) -> Nest | TileProgram:
    """The loops of a kernel on the CPU, or its launches on a GPU."""
    if device == "cpu":
        return with_prefetch(build_nest(kernel, choose_schedule(kernel, target), repeat=True))
    version, multiprocessors = capability(device)
    return build_tiles(kernel, GpuTarget(multiprocessors, version))


def _source(nest: Nest | TileProgram, target: Target, exact: bool) -> str:
    """The text of a kernel; raises CompileError."""
    if isinstance(nest, TileProgram):
        return emit_triton(nest, exact=exact)
    return emit(nest, contract=not exact, avx512=target.avx512)


def _launcher(b: Built, text: str, config: Config) -> Callable[..., None]:
    """Machine code for a region; raises CompileError."""
    if b.broken is not None:
        raise CompileError(b.broken)
    if isinstance(b.nest, Nest):
        (entry,) = load(text, ["kernel"])
        return Launcher(entry, b.nest.kernel, b.nest.block_bytes)
    names = [tuple(parameters(nest)) for nest in b.nest.nests]
    device = device_of(b.region.ops)
    launches = [
        TritonLaunch(f"k{k}", names[k], nest.tiling.warps) for k, nest in enumerate(b.nest.nests)
    ]
    made = load_triton(text, launches, capability(device)[0], config.precision != "eager")
    return CudaLauncher(b.nest, names, made.binary, device_index(device))


def _load(
    built: Sequence[Built], part: Partition, config: Config
) -> tuple[list[Callable[..., None]], dict[Region, KernelCall], list[str]]:
    """Machine code for every distinct kernel; regions that do not compile are left out."""
    bind_threads(find_openmp())
    POOL.limit = config.pool_bytes if config.pool_bytes is not None else POOL.limit
    launchers: list[Callable[..., None]] = []
    calls: dict[Region, KernelCall] = {}
    numbers: dict[str, int] = {}
    broken: list[str] = []
    for b in built:
        name = b.nest.kernel.name
        text = b.source.replace(f"@{name}", "@kernel")
        key = f"{device_of(b.region.ops)} {text}"
        if key not in numbers:
            try:
                launchers.append(_launcher(b, text, config))
            except CompileError as e:
                broken.append(_report_broken(b, part, config, e))
                continue
            numbers[key] = len(launchers) - 1
        calls[b.region] = KernelCall(numbers[key], b.arguments, b.nest.kernel.symbols)
    return launchers, calls, broken


def _report_broken(b: Built, part: Partition, config: Config, error: CompileError) -> str:
    """Warn, or raise under `strict`, with a file that shows the failure again."""
    name = b.nest.kernel.name
    path = write_repro(b.region, part.storage, str(error), config.dump)
    at = "" if path is None else f"; {path} shows it again"
    lines = dict.fromkeys(repr(op.loc) for op in b.region.ops if op.loc is not None)
    where = f" (from {', '.join(lines)})" if lines else ""
    if config.strict:
        raise CompileError(f"{name}{where} does not compile: {error}{at}") from error
    message = f"tofuse runs {name}{where} through PyTorch: {error}{at}"
    warnings.warn(message, stacklevel=2)
    return f"{name}: {error}"


def _signature(captured: Captured, graph: Graph) -> Signature:
    """How a call's arguments and results map to the graph after passes, outputs by position."""
    constants = tuple(v for v, _ in captured.constants)
    now = dict(zip(captured.graph.outputs, graph.outputs, strict=True))
    results = tuple(now[r] if isinstance(r, Value) else r for r in captured.results)
    return Signature((*captured.arguments, *constants), results, captured.symbols)


def _target(region: Region) -> str:
    """The operator of a library call; the name of a region that PyTorch runs op by op."""
    return str(region.ops[0].attr("target")) if region.library else region.name


def _report(
    phase: str,
    graph: Graph,
    part: Partition,
    built: Sequence[Built],
    elapsed: float,
    plan: str,
    broken: Sequence[str],
) -> GraphReport:
    views = frozenset(op for op in graph.ops if is_view(op))
    ours = {b.region for b in built}
    regions = [
        RegionReport(
            r.name,
            phase,
            tuple(op.kind if op.kind != "opaque" else str(op.attr("target")) for op in r.ops),
            tuple(dict.fromkeys(op.loc for op in r.ops if op.loc is not None)),
            region_bytes(r, part.storage),
            r.name if r in ours else None,
            tuple(v.name for op in r.ops for v in op.results),
        )
        for r in part.regions
    ]
    calls = [
        LibraryCall(_target(r), phase, "library call" if r.library else "no kernel", r.ops[0].loc)
        for r in part.regions
        if r not in ours and not _target(r).startswith("tofuse.")
    ]
    kernels = [
        KernelReport(b.region.name, phase, b.source, f"{b.nest.kernel!r}\n{b.nest!r}")
        for b in built
    ]
    return GraphReport(
        phase,
        tuple(regions),
        tuple(kernels),
        tuple(calls),
        part.verdicts,
        bytes_before(graph, views),
        sum(r.nbytes for r in regions),
        elapsed,
        show_graph(part.graph),
        plan,
        tuple(broken),
    )
