"""The report of one compiled graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tofuse.analysis.alias import is_eliminated_concat
from tofuse.capture.fx.eager_memory import EagerMemory
from tofuse.cost.memory_traffic import region_bytes
from tofuse.driver.link import LinkedProgram
from tofuse.fusion.partition.memory_limit import allowed_peak
from tofuse.graph_partition import Partition
from tofuse.ir.graph import Graph
from tofuse.ir.product_chain import ProductChain
from tofuse.ir.region import Region
from tofuse.plan.launch_groups import describe_groups, launch_count
from tofuse.report.call_times import TimeSpan
from tofuse.report.model import GraphReport, KernelReport, LibraryCall
from tofuse.report.region_report import RegionReport


def graph_report(
    phase: str, captured: Graph, part: Partition, program: LinkedProgram, stages: Sequence[TimeSpan]
) -> GraphReport:
    """Return the report of a compiled graph; `captured` is the graph before all passes."""
    generated = {g.region for g in program.generated}
    assigned = program.assigned
    regions = [
        RegionReport(
            r,
            phase,
            region_bytes(r, part.aliases.memrefs),
            r.name if r in generated else None,
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
        and not _target(r).startswith("tofuse.seed.")
        and not is_eliminated_concat(r.ops[-1])
    ]
    return GraphReport(
        phase,
        (*program.notes, *_mask_notes(program)),
        captured,
        part,
        program.plan,
        tuple(regions),
        tuple(KernelReport(g.region.name, phase, g.source, g.scheduled) for g in program.generated),
        tuple(calls),
        launch_count(program.plan),
        describe_groups(program.plan),
        stages=tuple(stages),
    )


def _mask_notes(program: LinkedProgram) -> list[str]:
    """Return a note on each kernel that computes only what masks leave."""
    notes: list[str] = []
    for g in program.generated:
        if isinstance(g.scheduled, ProductChain) and g.scheduled.masks:
            share = g.scheduled.computed
            known = f" ({share:.0%} of all)" if share < 1 else ""
            notes.append(f"{g.region.name} computes only the blocks that masks leave{known}")
    return notes


def _call_reason(region: Region) -> str:
    """Return why a region is a library call, and the epilogues that the library computes."""
    if not region.library:
        return "no kernel"
    attrs = dict(region.ops[0].attrs)
    epilogue = f" with its epilogue: {attrs['epilogue']}" if "epilogue" in attrs else ""
    return f"library call{epilogue}"


def _target(region: Region) -> str:
    """Return the operator of a library call, or the name of a region that runs op by op."""
    return str(region.ops[0].attr("target")) if region.library else region.name


def add_memory(report: GraphReport, memory: EagerMemory, eager_peak: int) -> GraphReport:
    """Add eager's memory use, and a note where ours exceeds it or the memory budget."""
    inputs = report.partition.graph.inputs
    names = memory.saved_arguments if report.phase == "backward" else ()
    saved = tuple(v for v in inputs if v.name in names)
    report = replace(report, saved=saved, eager_peak_bytes=eager_peak)
    notes, peak = report.notes, report.peak_bytes
    if peak > allowed_peak(eager_peak):
        notes += (f"holds up to {peak} bytes; eager holds up to {eager_peak}",)
    if report.phase != "forward":
        return replace(report, notes=notes)
    budget = memory.budget_bytes
    if budget is not None and memory.our_saved_bytes > budget:
        why = "the rest, such as seeds of random numbers, cannot be recomputed"
        saved_bytes = memory.our_saved_bytes
        notes += (f"memory_budget allows {budget} bytes, and {saved_bytes} are saved: {why}",)
    return replace(
        report,
        notes=notes,
        saved_bytes=memory.our_saved_bytes,
        eager_saved_bytes=memory.saved_bytes,
        recomputed=memory.recomputed_calls,
    )
