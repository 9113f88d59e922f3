"""The report as data: regions, kernels, library calls, verdicts, bytes and times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tofuse.analysis.alias import AliasAnalysis, is_aten_view, is_view
from tofuse.analysis.plan_liveness import memory_timeline
from tofuse.cost.memory_traffic import op_bytes
from tofuse.graph_partition import Partition
from tofuse.ir.executor import NO_EXECUTOR
from tofuse.ir.graph import Graph, Loc, Value, show_graph
from tofuse.ir.plan import Call, Launch, Plan, variable
from tofuse.ir.region import Verdict
from tofuse.ir.schedule import ScheduledKernel
from tofuse.ir.verify_plan import reads
from tofuse.report.call_times import CallTimes, MachineLimits, TimeSpan
from tofuse.report.collective_report import Collective, find_collectives
from tofuse.report.ranks import ONE_RANK, Ranks
from tofuse.report.region_report import RegionReport


@dataclass(frozen=True)
class KernelReport:
    """A generated kernel: `source` is the text that the backend compiles."""

    name: str
    phase: str
    source: str
    nest: ScheduledKernel

    @property
    def loops(self) -> str:
        """The kernel and its loop nest as text."""
        return repr(self.nest)


@dataclass(frozen=True)
class LibraryCall:
    """A call of a PyTorch operator, with the reason why no kernel replaces it."""

    name: str
    phase: str
    reason: str
    loc: Loc | None


@dataclass(frozen=True)
class MemorySample:
    """The live bytes while a region or op runs."""

    name: str
    nbytes: int


NO_GRAPH = Graph((), (), (), "")
NO_PARTITION = Partition(NO_GRAPH, (), AliasAnalysis(NO_GRAPH), ())
NO_PLAN = Plan("", (), (), (), ())


@dataclass(frozen=True)
class GraphReport:
    """One compiled graph: a forward, a backward, or an inference program.

    `captured` is the graph before all passes, `partition` the graph that runs, with its regions
    and verdicts, and `steps` its plan. All are empty if PyTorch runs the whole graph.

    `launches` counts the calls of machine code; `shared_launches` lists those that run several
    regions. `stages` are the times of the compilation, `last_run` those of the last measured run.

    Memory is in bytes, without the arguments and the workspaces of library calls.
    `eager_peak_bytes` is the peak of the eager program. A forward saves `saved_bytes` for its
    backward (eager saves `eager_saved_bytes`); a backward counts the `saved` values as live.
    `recomputed` calls run again in the backward instead of having their results saved.
    """

    phase: str
    notes: tuple[str, ...] = ()
    captured: Graph = NO_PARTITION.graph
    partition: Partition = NO_PARTITION
    steps: Plan = NO_PLAN
    regions: tuple[RegionReport, ...] = ()
    kernels: tuple[KernelReport, ...] = ()
    library_calls: tuple[LibraryCall, ...] = ()
    launches: int = 0
    shared_launches: tuple[str, ...] = ()
    saved: tuple[Value, ...] = ()
    eager_peak_bytes: int = 0
    saved_bytes: int = 0
    eager_saved_bytes: int = 0
    recomputed: int = 0
    stages: tuple[TimeSpan, ...] = ()
    last_run: tuple[TimeSpan, ...] = ()

    @property
    def graph(self) -> str:
        """The text of the graph that runs; empty if PyTorch runs the whole graph."""
        return "" if self.partition is NO_PARTITION else show_graph(self.partition.graph)

    @property
    def plan(self) -> str:
        """The text of the plan; empty if PyTorch runs the whole graph."""
        return "" if self.steps is NO_PLAN else repr(self.steps)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return self.partition.verdicts

    @property
    def fusions(self) -> tuple[Verdict, ...]:
        """The verdicts of merges in the order of fusion, which `fuel` counts."""
        return self.partition.fusions

    @property
    def bytes_before(self) -> int:
        """The bytes read and written if every op that computes runs by itself."""
        ops = [op for op in self.captured.ops if op.call_count and not is_view(op)]
        return sum(op_bytes(op) for op in ops if not is_aten_view(op))

    @property
    def bytes_after(self) -> int:
        """The bytes read and written by the regions."""
        return sum(r.nbytes for r in self.regions)

    @property
    def launches_before(self) -> int:
        """The number of ops that compute; each would be one launch by itself."""
        return sum(op.call_count for op in self.captured.ops if not is_view(op))

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """The collectives, in the order in which they start."""
        return find_collectives(self.partition.graph, self.steps, self.step_regions())

    @property
    def compile_ms(self) -> float:
        """The milliseconds from the captured graph to loaded kernels."""
        return (self.stages[-1].end - self.stages[0].begin) / 1e6 if self.stages else 0.0

    @property
    def memory_timeline(self) -> tuple[MemorySample, ...]:
        """The live bytes during each launch and library call, with saved tensors."""
        return self.live_memory(self.saved)

    @property
    def peak_bytes(self) -> int:
        """The most bytes live at once."""
        return max((m.nbytes for m in self.memory_timeline), default=0)

    def live_memory(self, saved: tuple[Value, ...] = ()) -> tuple[MemorySample, ...]:
        """Return the live bytes during each launch and library call; arguments in `saved` count."""
        regions = self.step_regions()
        samples = []
        for k, nbytes in memory_timeline(self.steps, self.partition.graph, saved):
            step = self.steps.steps[k]
            name = step.target if isinstance(step, Call) else str(step)
            samples.append(MemorySample(regions[k].name if k in regions else name, nbytes))
        return tuple(samples)

    def step_regions(self) -> dict[int, RegionReport]:
        """Return the region that each launch and library call of the plan runs, by step number."""
        running = [r for r in self.regions if r.executor != NO_EXECUTOR]
        by_name = {r.name: r for r in running}
        by_tensor = {variable(v): r for r in running for op in r.region.ops for v in op.results}
        without_results = [r for r in running if not r.values]
        found: dict[int, RegionReport] = {}
        for k, step in enumerate(self.steps.steps):
            region = None
            if isinstance(step, Launch):
                region = by_name.get(step.name)
            elif isinstance(step, Call) and step.results:
                region = next((by_tensor[n] for n in step.results if n in by_tensor), None)
            elif isinstance(step, Call):  # it writes into tensors that it is given
                written = [by_tensor[n] for n in reversed(reads(step)) if n in by_tensor]
                region = next((r for r in written if r not in found.values()), None)
                if region is None and without_results:
                    region = without_results.pop(0)
            if region is not None:
                found[k] = region
        return found

    def with_times(
        self, median_us: Mapping[int, float], last_run: Mapping[int, tuple[int, int]]
    ) -> GraphReport:
        """Return the report with each region's `measured_us` and the spans of the last run.

        Both arguments are by number of the plan's step: median microseconds, and begin and end.
        """
        if not median_us:
            return self
        region_of_step = self.step_regions()
        total: dict[str, float] = {}
        for step, us in median_us.items():
            if step in region_of_step:
                name = region_of_step[step].name
                total[name] = total.get(name, 0.0) + us
        regions = tuple(replace(r, measured_us=total.get(r.name)) for r in self.regions)
        spans = [
            TimeSpan(region_of_step[k].name if k in region_of_step else f"step {k}", *last_run[k])
            for k in sorted(last_run)
        ]
        return replace(self, regions=regions, last_run=tuple(spans))


@dataclass
class Report:
    """All graphs compiled for one function, in order of compilation.

    `breaks` lists graph breaks and functions left to Python, each with its line and reason,
    `variants` the reason for each variant of a program that calls made, `decisions` whether eager
    or compiled code runs calls outside of a report, and why. `ranks` are those of
    torch.distributed.
    """

    graphs: list[GraphReport] = field(default_factory=list)
    name: str = ""
    calls: CallTimes | None = None
    limits: MachineLimits | None = None
    breaks: list[str] = field(default_factory=list)
    variants: list[str] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)
    ranks: Ranks = ONE_RANK

    @property
    def title(self) -> str:
        """The name, with this process's rank if there are others."""
        name, ranks = self.name or "program", self.ranks
        return name if ranks.size == 1 else f"{name} (rank {ranks.rank} of {ranks.size})"

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
            sum(isinstance(step, Launch) for step in g.steps.steps) - g.launches
            for g in self.graphs
            if g.shared_launches
        )

    @property
    def collectives(self) -> list[Collective]:
        return [c for g in self.graphs for c in g.collectives]

    def phase(self, phase: str) -> Report:
        """The graphs of one phase: "forward", "backward" or "inference"."""
        return Report([g for g in self.graphs if g.phase == phase])

    @property
    def forward(self) -> Report:
        return Report([g for g in self.graphs if g.phase != "backward"])

    @property
    def backward(self) -> Report:
        return self.phase("backward")
