"""What a compilation decided, as data: regions, kernels, library calls, verdicts, bytes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tofuse.ir.dims import hint
from tofuse.ir.executor import NOTHING
from tofuse.ir.graph import Graph, Loc, Op, Value
from tofuse.ir.plan import Launch
from tofuse.ir.plan.parse import parse_plan
from tofuse.ir.region import Region, Strided, Verdict, is_placed, lends


@dataclass(frozen=True)
class KernelReport:
    """A generated kernel: `source` is what the backend compiled, `loops` its loop nest."""

    name: str
    phase: str
    source: str
    loops: str


@dataclass(frozen=True)
class LibraryCall:
    """A call of one of PyTorch's own operators, and why it is one."""

    name: str
    phase: str
    reason: str
    loc: Loc | None


@dataclass(frozen=True)
class RegionReport:
    """Ops that run as one kernel or one call; `nbytes` is the memory they read and write.

    `values` are the names of what the ops compute, as verdicts call them. `measured_us` is the
    median of several runs, the call from Python included; None where nothing was measured.
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
    def by(self) -> str:
        """Who runs it, in words: our code's backend, a registered executor, PyTorch."""
        return "PyTorch" if self.executor == "aten" else self.executor


@dataclass(frozen=True)
class Span:
    """Something that took time: a stage of compilation or a region's run, in nanoseconds."""

    name: str
    begin: int
    end: int

    @property
    def us(self) -> float:
        return (self.end - self.begin) / 1e3


@dataclass(frozen=True)
class Calls:
    """Median microseconds of whole calls, PyTorch's own (`eager`) and ours, over `rounds` each."""

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
class Limits:
    """What this machine did at best: bytes a second of a copy, operations a second of a product."""

    bandwidth: float
    arithmetic: float


@dataclass(frozen=True)
class GraphReport:
    """One compiled graph: the forward, the backward, or an inference program.

    `launches_before` counts the ops that compute, each of which would be a launch by itself;
    `launches` the calls of machine code, and `sharing` says which of them run several regions;
    `stages` are the times of its compilation, `run` those of its last measured run.

    Memory is in bytes beside the arguments and what library calls hold inside: `timeline` has for
    each launch and call what lives meanwhile, `peak_bytes` the most of it, `eager_peak_bytes` what
    running the program call by call would hold. A forward keeps `saved_bytes` for its backward,
    where eager keeps `eager_saved_bytes`; a backward counts them. `repeated` calls are made again
    in the backward to save no more.
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
    timeline: tuple[tuple[str, int], ...] = ()
    saved_bytes: int = 0
    eager_saved_bytes: int = 0
    repeated: int = 0
    launches_before: int = 0
    launches: int = 0
    sharing: tuple[str, ...] = ()
    stages: tuple[Span, ...] = ()
    run: tuple[Span, ...] = ()
    fusions: tuple[Verdict, ...] = ()  # in the order they were made; `fuel` counts them


def with_memory(
    report: GraphReport,
    timeline: tuple[tuple[str, int], ...],
    *,
    eager_peak: int,
    saved: int,
    eager_saved: int,
    repeated: int,
    allowed: int | None,
) -> GraphReport:
    """The report with its memory, and notes where that is more than eager's or than is allowed."""
    peak = max((nbytes for _, nbytes in timeline), default=0)
    notes = report.notes
    if peak > eager_peak + LITTLE:
        notes += (f"holds up to {peak} bytes, where eager holds up to {eager_peak}",)
    report = replace(
        report, peak_bytes=peak, eager_peak_bytes=eager_peak, timeline=timeline, notes=notes
    )
    if report.phase != "forward":
        return report
    if allowed is not None and saved > allowed:
        why = "the rest cannot be computed again, such as seeds of random numbers"
        notes += (f"memory_budget allows {allowed} bytes, and {saved} are saved: {why}",)
    return replace(
        report, saved_bytes=saved, eager_saved_bytes=eager_saved, repeated=repeated, notes=notes
    )


LITTLE = 64 * 1024  # bytes of row statistics and seeds, which eager does without


@dataclass
class Report:
    """Everything compiled for one function, in the order it was compiled.

    `breaks` says where the program was broken into several, or left to Python, and why.
    """

    graphs: list[GraphReport] = field(default_factory=list)
    name: str = ""
    calls: Calls | None = None
    limits: Limits | None = None
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
        """How often a call of everything enters machine code of ours."""
        return sum(g.launches for g in self.graphs)

    @property
    def notes(self) -> list[str]:
        return [n for g in self.graphs for n in g.notes]

    @property
    def bytes_before(self) -> int:
        """Bytes that running every op by itself reads and writes."""
        return sum(g.bytes_before for g in self.graphs)

    @property
    def bytes_after(self) -> int:
        """Bytes that the regions read and write."""
        return sum(g.bytes_after for g in self.graphs)

    @property
    def peak_bytes(self) -> int:
        """The most bytes that any of the graphs holds beside its arguments."""
        return max((g.peak_bytes for g in self.graphs), default=0)

    @property
    def eager_peak_bytes(self) -> int:
        """The most bytes that eager would hold."""
        return max((g.eager_peak_bytes for g in self.graphs), default=0)

    @property
    def saved_bytes(self) -> int:
        """Bytes kept between forward and backward."""
        return sum(g.saved_bytes for g in self.graphs)

    @property
    def eager_saved_bytes(self) -> int:
        """Bytes that eager keeps between forward and backward."""
        return sum(g.eager_saved_bytes for g in self.graphs)

    @property
    def compile_ms(self) -> float:
        """Milliseconds from captured graphs to loaded kernels."""
        return sum(g.compile_ms for g in self.graphs)

    @property
    def launches_before(self) -> int:
        """Ops that compute: launches, if each ran by itself."""
        return sum(g.launches_before for g in self.graphs)

    @property
    def launches_after(self) -> int:
        """Kernels, and operators that run whole: library calls."""
        return sum(r.executor != NOTHING for r in self.regions)

    @property
    def launches_made(self) -> int:
        """The same, but for kernels that one launch runs side by side."""
        return self.launches_after - sum(
            sum(isinstance(step, Launch) for step in parse_plan(g.plan).steps) - g.launches
            for g in self.graphs
            if g.sharing
        )

    def phase(self, phase: str) -> Report:
        """The part about one phase: "forward", "backward" or "inference"."""
        return Report([g for g in self.graphs if g.phase == phase])

    @property
    def forward(self) -> Report:
        return Report([g for g in self.graphs if g.phase != "backward"])

    @property
    def backward(self) -> Report:
        return self.phase("backward")


def traffic(ops_or_regions: list[tuple[tuple[Value, ...], tuple[Value, ...]]]) -> int:
    """Bytes of distinct inputs plus outputs, summed."""
    return sum(
        hint(v.type.nbytes) for ins, outs in ops_or_regions for v in (*dict.fromkeys(ins), *outs)
    )


def bytes_before(graph: Graph, views: frozenset[Op]) -> int:
    """Every op of the user's that computes reads its operands and writes its results."""
    working = [op for op in graph.ops if op.times and op not in views and not lends(op)]
    return traffic([(op.inputs, op.results) for op in working])


def region_bytes(region: Region, storage: dict[Value, Strided]) -> int:
    """What the region reads from outside, each tensor once, and writes.

    Views count with their own elements, but together never with more than their tensor has. A cat
    whose pieces lie in place moves nothing, nor does a view that PyTorch makes.
    """
    if is_placed(region.ops[-1]) or lends(region.ops[-1]):
        return 0
    seen: dict[Value, dict[object, int]] = {}
    for v in region.inputs:
        place = storage.get(v) or Strided(v, 0, v.layout)
        views = seen.setdefault(place.root, {})
        views[v.shape, place.offset, place.strides] = hint(v.type.nbytes)
    read = sum(min(hint(root.type.nbytes), sum(s.values())) for root, s in seen.items())
    return read + sum(hint(v.type.nbytes) for v in region.outputs)
