"""The report as a trace that Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Union

from tofuse.report.model import GraphReport, RegionReport, Report, Span

Event = dict[str, Union[str, int, float, dict[str, Union[str, int, float]]]]  # noqa: UP007

PROCESS = 1
COMPILE, RUN = 1, 2  # threads of the trace: what was compiled, and the last measured run


def trace_text(report: Report) -> str:
    """JSON in the trace event format: complete events, in microseconds from the first one."""
    spans = [s for g in report.graphs for s in (*g.stages, *g.run)]
    start = min((s.begin for s in spans), default=0)
    events = [*_names(report)]
    for g in report.graphs:
        events += [_event(s, COMPILE, start, f"compile {g.phase}", {}) for s in g.stages]
        regions = {r.name: r for r in g.regions}
        events += [_event(s, RUN, start, g.phase, _facts(g, regions.get(s.name))) for s in g.run]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}, indent=1)


def write_trace(report: Report, path: Path) -> None:
    """Write the trace, folders included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(trace_text(report), encoding="utf-8")


def _names(report: Report) -> Iterable[Event]:
    names = [("process_name", COMPILE, f"tofuse {report.name}".strip())]
    names += [("thread_name", COMPILE, "compile")]
    if any(g.run for g in report.graphs):
        names += [("thread_name", RUN, "run: kernels and library calls")]
    for kind, thread, name in names:
        yield {
            "ph": "M",
            "name": kind,
            "pid": PROCESS,
            "tid": thread,
            "ts": 0,
            "args": {"name": name},
        }


def _event(
    span: Span, thread: int, start: int, category: str, facts: dict[str, str | int | float]
) -> Event:
    return {
        "ph": "X",
        "name": span.name,
        "cat": category,
        "pid": PROCESS,
        "tid": thread,
        "ts": (span.begin - start) / 1e3,
        "dur": span.us,
        "args": facts,
    }


def _facts(graph: GraphReport, region: RegionReport | None) -> dict[str, str | int | float]:
    """What is known of a region, for the panel under the timeline."""
    if region is None:
        return {}
    facts: dict[str, str | int | float] = {
        "bytes": region.nbytes,
        "ops": " ".join(region.ops),
        "executor": region.by,
    }
    if region.measured_us is not None:
        facts["median_us"] = region.measured_us
    if region.predicted_us > 0:
        facts["predicted_us"] = region.predicted_us
    here = set(region.values)
    apart = [v for v in graph.verdicts if v.consumer in here and not v.fused]
    if apart:
        said = dict.fromkeys(f"{v.producer}: {v.rule}" for v in apart)
        facts["not fused with"] = "; ".join(said)
    if region.locs:
        facts["lines"] = ", ".join(map(repr, region.locs))
    return facts
