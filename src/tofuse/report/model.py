"""The report as data: regions, kernels, library calls, verdicts, bytes and times."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tofuse.ir.dims import size_hint
from tofuse.ir.executor import NO_EXECUTOR
from tofuse.ir.graph import Graph, Loc, Op, Value
from tofuse.ir.plan import Launch
from tofuse.ir.plan.parse import parse_plan
from tofuse.ir.region import MemRef, Region, Verdict, is_aten_view, is_eliminated_concat


@dataclass(frozen=True)
class KernelReport:
    """A generated kernel: `loops` is its loop nest, `source` the text the backend compiles."""

    name: str
    phase: str
    source: str
    loops: str


@dataclass(frozen=True)
class LibraryCall:
    """A call of a PyTorch operator, with the reason why no kernel replaces it."""

    name: str
    phase: str
    reason: str
    loc: Loc | None


@dataclass(frozen=True)
class RegionReport:
    """Ops that run as one kernel or one library call.

    `nbytes` counts the bytes read and written. `values` are the names of the ops' results, as
    verdicts use them. `why` is the reason for the executor. `measured_us` is the median of several
    runs, including the call from Python; None without `measure=True`.
    """

    name: str
    phase: str
    ops: tuple[str, ...]
    locs: tuple[Loc, ...]
    nbytes: int
    kernel: str | None
    values: tuple[str, ...] = ()
    predicted_us: float = 0.0
    measured_us: float | None = None
    executor: str = "llvm"
    why: str = ""

    @property
    def executor_label(self) -> str:
        """The executor's name for readers: a backend, a registered executor, or PyTorch."""
        return "PyTorch" if self.executor == "aten" else self.executor


@dataclass(frozen=True)
class TimeSpan:
    """The begin and end, in nanoseconds, of a compilation stage or of a region's run."""

    name: str
    begin: int
    end: int

    @property
    def us(self) -> float:
        return (self.end - self.begin) / 1e3


@dataclass(frozen=True)
class CallTimes:
    """Median microseconds of whole calls, eager and compiled, over `rounds` calls of each."""

    rounds: int
    eager_forward: float
    eager_backward: float
    forward: float
    backward: float

    @property
    def eager(self) -> float:
        return self.eager_forward + self.eager_backward

    @property
    def ours(self) -> float:
        return self.forward + self.backward


@dataclass(frozen=True)
class MachineLimits:
    """Measured peak rates: bytes per second of a copy, operations per second of a product."""

    bandwidth: float
    arithmetic: float


@dataclass(frozen=True)
class GraphReport:
    """One compiled graph: a forward, a backward, or an inference program.

    `launches_before` counts the ops that compute; each would be one launch by itself. `launches`
    counts the calls of machine code; `shared_launches` lists those that run several regions.
    `stages` are the times of the compilation, `last_run` those of the last measured run.

    Memory is in bytes, without the arguments and the workspaces of library calls.
    `memory_timeline` holds the live bytes during each launch and library call, `peak_bytes` their
    maximum, and `eager_peak_bytes` the peak of the eager program. A forward saves `saved_bytes` for
    its backward (eager saves `eager_saved_bytes`); a backward counts them as live. `recomputed`
    calls run again in the backward instead of having their results saved.
    """

    phase: str
    regions: tuple[RegionReport, ...] = ()
    kernels: tuple[KernelReport, ...] = ()
    library_calls: tuple[LibraryCall, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    bytes_before: int = 0
    bytes_after: int = 0
    compile_ms: float = 0.0
    graph: str = ""
    plan: str = ""
    notes: tuple[str, ...] = ()
    peak_bytes: int = 0
    eager_peak_bytes: int = 0
    memory_timeline: tuple[tuple[str, int], ...] = ()
    saved_bytes: int = 0
    eager_saved_bytes: int = 0
    recomputed: int = 0
    launches_before: int = 0
    launches: int = 0
    shared_launches: tuple[str, ...] = ()
    stages: tuple[TimeSpan, ...] = ()
    last_run: tuple[TimeSpan, ...] = ()
    fusions: tuple[Verdict, ...] = ()  # in the order of fusion, which `fuel` counts


def add_memory_use(
    report: GraphReport,
    timeline: tuple[tuple[str, int], ...],
    *,
    eager_peak: int,
    saved: int,
    eager_saved: int,
    recomputed: int,
    budget: int | None,
) -> GraphReport:
    """Add memory use, and a note where it exceeds eager's peak or the memory budget."""
    peak = max((nbytes for _, nbytes in timeline), default=0)
    notes = report.notes
    if peak > eager_peak + PEAK_TOLERANCE:
        notes += (f"holds up to {peak} bytes; eager holds up to {eager_peak}",)
    report = replace(
        report, peak_bytes=peak, eager_peak_bytes=eager_peak, memory_timeline=timeline, notes=notes
    )
    if report.phase != "forward":
        return report
    if budget is not None and saved > budget:
        why = "the rest, such as seeds of random numbers, cannot be recomputed"
        notes += (f"memory_budget allows {budget} bytes, and {saved} are saved: {why}",)
    return replace(
        report, saved_bytes=saved, eager_saved_bytes=eager_saved, recomputed=recomputed, notes=notes
    )


PEAK_TOLERANCE = 64 * 1024  # bytes of row statistics and seeds, which eager does not hold


@dataclass
class Report:
    """All graphs compiled for one function, in order of compilation.

    `breaks` lists graph breaks and functions left to Python, each with its line and reason.
    """

    graphs: list[GraphReport] = field(default_factory=list)
    name: str = ""
    calls: CallTimes | None = None
    limits: MachineLimits | None = None
    breaks: list[str] = field(default_factory=list)

    @property
    def regions(self) -> list[RegionReport]:
        return [r for g in self.graphs for r in g.regions]

    @property
    def kernels(self) -> list[KernelReport]:
        return [k for g in self.graphs for k in g.kernels]

    @property
    def library_calls(self) -> list[LibraryCall]:
        return [c for g in self.graphs for c in g.library_calls]

    @property
    def verdicts(self) -> list[Verdict]:
        return [v for g in self.graphs for v in g.verdicts]

    @property
    def fusions(self) -> list[Verdict]:
        return [v for g in self.graphs for v in g.fusions]

    @property
    def launches(self) -> int:
        """Calls of generated machine code in one run of all graphs."""
        return sum(g.launches for g in self.graphs)

    @property
    def notes(self) -> list[str]:
        return [n for g in self.graphs for n in g.notes]

    @property
    def bytes_before(self) -> int:
        """Bytes read and written if every op runs by itself."""
        return sum(g.bytes_before for g in self.graphs)

    @property
    def bytes_after(self) -> int:
        """Bytes read and written by the regions."""
        return sum(g.bytes_after for g in self.graphs)

    @property
    def peak_bytes(self) -> int:
        """The highest peak memory of the graphs, without their arguments."""
        return max((g.peak_bytes for g in self.graphs), default=0)

    @property
    def eager_peak_bytes(self) -> int:
        """The highest peak memory of the eager programs."""
        return max((g.eager_peak_bytes for g in self.graphs), default=0)

    @property
    def saved_bytes(self) -> int:
        """Bytes of saved tensors."""
        return sum(g.saved_bytes for g in self.graphs)

    @property
    def eager_saved_bytes(self) -> int:
        """Bytes of the tensors that eager autograd saves."""
        return sum(g.eager_saved_bytes for g in self.graphs)

    @property
    def compile_ms(self) -> float:
        """Milliseconds from the captured graphs to loaded kernels."""
        return sum(g.compile_ms for g in self.graphs)

    @property
    def launches_before(self) -> int:
        """The number of ops that compute: the launches if each ran by itself."""
        return sum(g.launches_before for g in self.graphs)

    @property
    def launches_after(self) -> int:
        """The number of kernels and library calls."""
        return sum(r.executor != NO_EXECUTOR for r in self.regions)

    @property
    def launches_after_grouping(self) -> int:
        """The number of launches and library calls, with each launch group counted once."""
        return self.launches_after - sum(
            sum(isinstance(step, Launch) for step in parse_plan(g.plan).steps) - g.launches
            for g in self.graphs
            if g.shared_launches
        )

    def phase(self, phase: str) -> Report:
        """The graphs of one phase: "forward", "backward" or "inference"."""
        return Report([g for g in self.graphs if g.phase == phase])

    @property
    def forward(self) -> Report:
        return Report([g for g in self.graphs if g.phase != "backward"])

    @property
    def backward(self) -> Report:
        return self.phase("backward")


def traffic(reads_and_writes: list[tuple[tuple[Value, ...], tuple[Value, ...]]]) -> int:
    """Sum the bytes of distinct inputs and of outputs."""
    return sum(
        size_hint(v.type.nbytes)
        for ins, outs in reads_and_writes
        for v in (*dict.fromkeys(ins), *outs)
    )


def bytes_before(graph: Graph, views: frozenset[Op]) -> int:
    """Return the bytes read and written if every op that computes runs by itself."""
    computing = [
        op for op in graph.ops if op.call_count and op not in views and not is_aten_view(op)
    ]
    return traffic([(op.inputs, op.results) for op in computing])


def region_bytes(region: Region, storage: dict[Value, MemRef]) -> int:
    """Return the bytes that a region reads from outside, each tensor once, and writes.

    A view counts its own elements; all views of one tensor together count at most that tensor's
    bytes. An eliminated concat and a view that PyTorch makes move no bytes.
    """
    if is_eliminated_concat(region.ops[-1]) or is_aten_view(region.ops[-1]):
        return 0
    view_bytes: dict[Value, dict[object, int]] = {}
    for v in region.inputs:
        ref = storage.get(v) or MemRef(v, 0, v.layout)
        views = view_bytes.setdefault(ref.root, {})
        views[v.shape, ref.offset, ref.strides] = size_hint(v.type.nbytes)
    read = sum(min(size_hint(root.type.nbytes), sum(s.values())) for root, s in view_bytes.items())
    return read + sum(size_hint(v.type.nbytes) for v in region.outputs)
