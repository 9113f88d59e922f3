"""The compiler, top to bottom: from a captured graph to a callable and a report."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tofuse.backends.aten.region import graph_runner, region_runner
from tofuse.backends.llvm.driver import DRIVER
from tofuse.backends.llvm.emit import emit, part_names
from tofuse.backends.llvm.load import address, bind_threads, host_target, load
from tofuse.capture.convert import AtenGraph, Captured, convert
from tofuse.config import Config
from tofuse.errors import CaptureError, CompileError
from tofuse.fusion.axes import Misaligned
from tofuse.fusion.coalesce import coalesce
from tofuse.fusion.cost import Machine
from tofuse.fusion.lower import lower
from tofuse.fusion.partition import partition
from tofuse.fusion.storage import is_view
from tofuse.fusion.streams import streamed, with_streams
from tofuse.ir.dims import Dim, hint, symbol, symbols_of
from tofuse.ir.graph import Graph, Value
from tofuse.ir.kernel import Kernel
from tofuse.ir.loops import Nest
from tofuse.ir.parse import parse_graph
from tofuse.ir.plan import Plan
from tofuse.ir.region import Partition, Region
from tofuse.ir.region_text import show_partition
from tofuse.ir.schedule import Schedule, Target
from tofuse.ir.show import show_graph
from tofuse.ops.kernel_verify import verify
from tofuse.ops.verify import verify as verify_graph
from tofuse.passes import run_passes
from tofuse.report.model import (
    GraphReport,
    KernelReport,
    LibraryCall,
    RegionReport,
    Span,
    bytes_before,
    region_bytes,
)
from tofuse.report.repro import write_repro
from tofuse.report.stages import Stages
from tofuse.runtime.build import Signature, build_plan
from tofuse.runtime.clock import Clock
from tofuse.runtime.execute import Run, load_plan
from tofuse.runtime.homes import KernelCall
from tofuse.runtime.launch import Launcher, Part, find_openmp, thread_count
from tofuse.runtime.pool import POOL
from tofuse.runtime.together import launch_count, sharing
from tofuse.schedule.choose import choose_schedule
from tofuse.schedule.nest import Unschedulable, build_nest
from tofuse.schedule.overwrite import overwritable
from tofuse.schedule.prefetch import with_prefetch
from tofuse.schedule.share import share

LARGE_WORKSPACE = 1 << 16  # bytes a thread: a kernel with more is launched by itself
Keep = Callable[[GraphReport], "Clock | None"]  # may answer with a clock to time the plan's steps


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
    stages = Stages(phase, config.show, config.dump)
    graph = run_passes(captured.graph)
    stages.done("passes")
    stages.text("graph", lambda: show_graph(graph))
    target = host_target(thread_count())
    part = partition(graph, lambda kernel: misfit(kernel, target), Machine())
    stages.done("partition")
    built, unfit = _build(part, target, config)
    stages.done("lower and emit")
    launchers, calls, broken = _load(built, part, config)
    stages.done("machine code")
    broken += [f"{u.region.name} runs through PyTorch: {u.reason}" for u in unfit]
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
    constants = [t for _, t in captured.constants]
    (driver,) = load(DRIVER, ["kernel"])
    run = load_plan(plan, launchers, driver, constants, fallbacks)
    stages.done("plan")
    running = [b for b in built if b.region in calls]
    clock = keep(_report(phase, captured.graph, part, running, stages.spans, plan, broken))
    return run if clock is None else load_plan(plan, launchers, driver, constants, fallbacks, clock)


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


@dataclass(frozen=True, eq=False)
class Built:
    """A region on its way to machine code; `broken` says why there will be none.

    Regions alike but for their sizes have one nest; `sizes` are this one's.
    """

    region: Region
    nest: Nest
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
class Scheduled:
    """A region's kernel, and the order of its loops."""

    region: Region
    kernel: Kernel
    schedule: Schedule
    arguments: tuple[Value, ...]


def _build(part: Partition, target: Target, config: Config) -> tuple[list[Built], list[Unfit]]:
    """Text for every region that is no library call, written once for regions that are alike."""
    streams = streamed(part)
    made = [_schedule(r, part, streams, target, config) for r in part.regions if not r.library]
    scheduled = [m for m in made if isinstance(m, Scheduled)]
    unfit = [m for m in made if isinstance(m, Unfit)]
    written: dict[Kernel, tuple[Nest, str, str | None] | str] = {}
    built: list[Built] = []
    for m, shared in zip(
        scheduled, share([(m.kernel, m.schedule) for m in scheduled]), strict=True
    ):
        if shared.kernel not in written:
            written[shared.kernel] = _write(shared.kernel, m.schedule, target, config)
        found = written[shared.kernel]
        if isinstance(found, str):
            unfit.append(Unfit(m.region, found))
        else:
            nest, source, broken = found
            built.append(Built(m.region, nest, m.arguments, shared.sizes, source, broken))
    return built, unfit


def _schedule(
    region: Region, part: Partition, streams: frozenset[Value], target: Target, config: Config
) -> Scheduled | Unfit:
    try:
        lowered = lower(region, part.storage, exact=config.precision == "eager")
        kernel = with_streams(coalesce(lowered.kernel), lowered.arguments, streams)
        return Scheduled(region, kernel, choose_schedule(kernel, target), lowered.arguments)
    except Misaligned as e:
        return Unfit(region, str(e))


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
        return nest, emit(nest, contract=contract, avx512=target.avx512), None
    except CompileError as e:
        return nest, f"; {e}", str(e)


def _load(
    built: Sequence[Built], part: Partition, config: Config
) -> tuple[list[Launcher], dict[Region, KernelCall], list[str]]:
    """Machine code for every distinct kernel; regions that do not compile are left out."""
    bind_threads(find_openmp())
    POOL.limit = config.pool_bytes if config.pool_bytes is not None else POOL.limit
    launchers: list[Launcher] = []
    calls: dict[Region, KernelCall] = {}
    numbers: dict[str, int] = {}
    broken: list[str] = []
    for b in built:
        name = b.nest.kernel.name
        text = b.source.replace(f"@{name}", "@kernel")
        if text not in numbers:
            try:
                if b.broken is not None:
                    raise CompileError(b.broken)
                names = part_names(b.nest)
                entry, *functions = load(text, ["kernel", *(f"kernel.{n}" for n, _ in names)])
            except CompileError as e:
                broken.append(_report_broken(b, part, config, e))
                continue
            numbers[text] = len(launchers)
            parts = [Part(address(f), s) for f, (_, s) in zip(functions, names, strict=True)]
            launchers.append(Launcher(entry, b.nest.kernel, b.nest.block_bytes, parts))
        values = {x.name: v for x, v in zip(b.nest.kernel.buffers, b.arguments, strict=True)}
        over = frozenset((values[y], values[x]) for y, x in overwritable(b.nest))
        alone = hint(b.nest.block_bytes) > LARGE_WORKSPACE
        written = None if alone else tuple(x.role != "in" for x in b.nest.kernel.buffers)
        calls[b.region] = KernelCall(numbers[text], b.arguments, b.sizes, written, over)
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
    writes = tuple((t, new) for t, v in captured.writes if (new := now[v]) is not None)
    return Signature((*captured.arguments, *constants), results, captured.symbols, writes)


def _target(region: Region) -> str:
    """The operator of a library call; the name of a region that PyTorch runs op by op."""
    return str(region.ops[0].attr("target")) if region.library else region.name


def _report(
    phase: str,
    graph: Graph,
    part: Partition,
    built: Sequence[Built],
    stages: Sequence[Span],
    plan: Plan,
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
        (stages[-1].end - stages[0].begin) / 1e6,
        show_graph(part.graph),
        repr(plan),
        tuple(broken),
        launches_before=len(graph.ops) - len(views),
        stages=tuple(stages),
        launches=launch_count(plan),
        sharing=sharing(plan),
    )
