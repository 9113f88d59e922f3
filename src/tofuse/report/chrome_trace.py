"""The report as a trace for Perfetto and chrome://tracing."""

from __future__ import annotations

import json
from typing import Union

from tofuse.report.model import GraphReport, RegionReport, Report, TimeSpan

Args = dict[str, Union[str, int, float]]  # noqa: UP007
Event = dict[str, Union[str, int, float, Args]]  # noqa: UP007

PROCESS_ID = 1
COMPILE_THREAD, RUN_THREAD = 1, 2  # tracks: compilation stages, and the last measured run


def trace_text(report: Report) -> str:
    """Return JSON in the trace event format: complete events, in µs from the first one."""
    spans = [s for g in report.graphs for s in (*g.stages, *g.last_run)]
    start = min((s.begin for s in spans), default=0)
    events = [_name("process_name", COMPILE_THREAD, f"tofuse {report.name}".strip())]
    events.append(_name("thread_name", COMPILE_THREAD, "compile"))
    if any(g.last_run for g in report.graphs):
        events.append(_name("thread_name", RUN_THREAD, "run: kernels and library calls"))
    for g in report.graphs:
        events += [_span(s, COMPILE_THREAD, start, f"compile {g.phase}", {}) for s in g.stages]
        args = {r.name: _region_args(g, r) for r in g.regions}
        events += [_span(s, RUN_THREAD, start, g.phase, args.get(s.name, {})) for s in g.last_run]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}, indent=1)


def _name(kind: str, thread: int, name: str) -> Event:
    event: Event = {"ph": "M", "name": kind, "pid": PROCESS_ID, "tid": thread, "ts": 0}
    return event | {"args": {"name": name}}


def _span(span: TimeSpan, thread: int, start: int, category: str, args: Args) -> Event:
    event: Event = {"ph": "X", "name": span.name, "cat": category, "pid": PROCESS_ID}
    return event | {
        "tid": thread,
        "ts": (span.begin - start) / 1e3,
        "dur": span.us,
        "args": args,
    }


def _region_args(graph: GraphReport, region: RegionReport) -> Args:
    """Return the event arguments that a trace viewer shows for a selected region."""
    args: Args = {
        "bytes": region.nbytes,
        "ops": " ".join(region.ops),
        "executor": region.executor_label,
    }
    if region.measured_us is not None:
        args["median_us"] = region.measured_us
    if region.predicted_us > 0:
        args["predicted_us"] = region.predicted_us
    values = set(region.values)
    not_fused = [v for v in graph.verdicts if v.consumer in values and not v.fused]
    if not_fused:
        producers = dict.fromkeys(f"{v.producer}: {v.rule}" for v in not_fused)
        args["not fused with"] = "; ".join(producers)
    if region.locs:
        args["lines"] = ", ".join(map(repr, region.locs))
    return args
