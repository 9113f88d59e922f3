"""The report of one compiled graph."""

from __future__ import annotations

from collections.abc import Sequence

from tofuse.analysis.alias import is_view
from tofuse.capture.fx.eager_memory import EagerMemory
from tofuse.driver.link import LinkedProgram
from tofuse.ir.graph import Graph
from tofuse.ir.graph.print import show_graph
from tofuse.ir.region import Partition, Region, is_eliminated_concat
from tofuse.plan.launch_groups import describe_groups, launch_count
from tofuse.plan.peak import MemoryTimeline
from tofuse.report.model import (
    GraphReport,
    KernelReport,
    LibraryCall,
    RegionReport,
    TimeSpan,
    add_memory_use,
    bytes_before,
    region_bytes,
)


def graph_report(
    phase: str, graph: Graph, part: Partition, program: LinkedProgram, stages: Sequence[TimeSpan]
) -> GraphReport:
    """Return the report of a compiled graph; `graph` is the captured graph before all passes."""
    views = frozenset(op for op in graph.ops if is_view(op))
    generated = {g.region for g in program.generated}
    assigned = program.assigned
    regions = [
        RegionReport(
            r.name,
            phase,
            tuple(op.kind if op.kind != "opaque" else str(op.attr("target")) for op in r.ops),
            tuple(dict.fromkeys(op.loc for op in r.ops if op.loc is not None)),
            region_bytes(r, part.storage),
            r.name if r in generated else None,
            tuple(v.name for op in r.ops for v in op.results),
            assigned[r].us,
            executor=assigned[r].name,
            why=assigned[r].why,
        )
        for r in part.regions
    ]
    calls = [
        LibraryCall(_target(r), phase, _call_reason(r), r.ops[0].loc)
        for r in part.regions
        if r not in generated
        and not _target(r).startswith("tofuse.")
        and not is_eliminated_concat(r.ops[-1])
    ]
    kernels = [
        KernelReport(g.region.name, phase, g.source, f"{g.nest.kernel!r}\n{g.nest!r}")
        for g in program.generated
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
        repr(program.plan),
        tuple(program.notes),
        launches_before=sum(op.call_count for op in graph.ops if op not in views),
        launches=launch_count(program.plan),
        shared_launches=describe_groups(program.plan),
        stages=tuple(stages),
        fusions=part.fusions,
    )


def _call_reason(region: Region) -> str:
    """Return why a region is a library call, and the epilogues that the library computes."""
    if not region.library:
        return "no kernel"
    epilogues = [
        f" with its epilogue: {v}" for name, v in region.ops[0].attrs if name == "epilogue"
    ]
    return "".join(["library call", *epilogues])


def _target(region: Region) -> str:
    """Return the operator of a library call, or the name of a region that runs op by op."""
    return str(region.ops[0].attr("target")) if region.library else region.name


def add_memory(
    report: GraphReport, timeline: MemoryTimeline, eager_peak: int, memory: EagerMemory
) -> GraphReport:
    """Return the report with the plan's memory use beside eager's, in bytes."""
    return add_memory_use(
        report,
        timeline,
        eager_peak=eager_peak,
        saved=memory.our_saved_bytes,
        eager_saved=memory.saved_bytes,
        recomputed=memory.recomputed_calls,
        budget=memory.budget_bytes,
    )
