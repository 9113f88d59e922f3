"""The report as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Union

from tofuse.ir.region import Verdict
from tofuse.report.advice import ADVICE
from tofuse.report.collective_report import Collective
from tofuse.report.model import GraphReport, Report
from tofuse.report.region_report import RegionReport

Json = Union[str, int, float, None, Sequence["Json"], Mapping[str, "Json"]]  # noqa: UP007
Record = dict[str, Json]


def report_record(report: Report) -> Record:
    """Return the report as data for JSON; a key ends in its unit."""
    return {
        "name": report.name,
        "rank": report.ranks.rank,
        "ranks": report.ranks.size,
        "operations": report.launches_before,
        "kernels": len(report.kernels),
        "library_calls": len(report.library_calls),
        "bytes_before": report.bytes_before,
        "bytes_after": report.bytes_after,
        "peak_bytes": report.peak_bytes,
        "eager_peak_bytes": report.eager_peak_bytes,
        "compile_ms": report.compile_ms,
        "calls": None if report.calls is None else asdict(report.calls),
        "graph_breaks": list(report.breaks),
        "variants": list(report.variants),
        "decisions": list(report.decisions),
        "graphs": [_graph(graph) for graph in report.graphs],
    }


def _graph(graph: GraphReport) -> Record:
    return {
        "phase": graph.phase,
        "notes": list(graph.notes),
        "regions": [_region(region) for region in graph.regions],
        "verdicts": [_verdict(verdict) for verdict in graph.verdicts],
        "collectives": [_collective(collective) for collective in graph.collectives],
    }


def _region(region: RegionReport) -> Record:
    return {
        "name": region.name,
        "executor": region.executor_label,
        "reason": region.why,
        "kernel": region.kernel,
        "operations": list(region.ops),
        "bytes": region.nbytes,
        "predicted_us": region.predicted_us,
        "measured_us": region.measured_us,
        "lines": list(map(repr, region.locs)),
    }


def _collective(collective: Collective) -> Record:
    return {
        "name": collective.name,
        "operator": collective.operator,
        "group": collective.group,
        "operand_bytes": collective.operand_bytes,
        "result_bytes": collective.result_bytes,
        "overlapped": [region.name for region in collective.overlapped],
        "overlapped_us": collective.overlapped_us,
        "line": None if collective.loc is None else repr(collective.loc),
    }


def _verdict(verdict: Verdict) -> Record:
    advice = ADVICE[verdict.reason.rule]
    return {
        "producer": verdict.producer,
        "consumer": verdict.consumer,
        "fused": verdict.fused,
        "rule": verdict.rule,
        "title": advice.title,
        "to_do": "" if verdict.fused else advice.todo,
        "bytes_saved": verdict.bytes_saved,
        "line": None if verdict.loc is None else repr(verdict.loc),
    }
