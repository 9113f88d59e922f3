"""The report as a trace for Perfetto and chrome://tracing."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Union

from tofuse.report.call_times import TimeSpan
from tofuse.report.collective_report import Collective
from tofuse.report.model import GraphReport, Report
from tofuse.report.region_report import RegionReport

Args = dict[str, Union[str, int, float]]  # noqa: UP007
Event = dict[str, Union[str, int, float, Args]]  # noqa: UP007

# tracks: compilation stages, the last measured run, and its collectives from start to wait
COMPILE_THREAD, RUN_THREAD, COLLECTIVE_THREAD = 1, 2, 3


@dataclass(frozen=True)
class RankTrace:
    """The events of one rank, in µs of its machine's clock. Its process number is the rank + 1."""

    machine: str
    start: float
    events: tuple[Event, ...]


def trace_text(report: Report) -> str:
    """Return JSON in the trace event format: complete events, in µs from the first one."""
    return _show([_rank_trace(report)])


def trace_text_of_ranks(report: Report) -> str:
    """Return the trace of all ranks, "" on other ranks than 0. All ranks must call it.

    The clocks of several machines are set so that their first events coincide.
    """
    traces = report.ranks.gather(_rank_trace(report))
    return _show(t for t in traces if isinstance(t, RankTrace)) if traces else ""


def _show(traces: Iterable[RankTrace]) -> str:
    traces = list(traces)
    start = {t.machine: min(u.start for u in traces if u.machine == t.machine) for t in traces}
    events = [_shifted(e, start[t.machine]) for t in traces for e in t.events]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}, indent=1)


def _shifted(event: Event, start: float) -> Event:
    time = event["ts"]
    assert isinstance(time, (int, float))
    return event if event["ph"] == "M" else event | {"ts": time - start}


def _rank_trace(report: Report) -> RankTrace:
    process = report.ranks.rank + 1
    runs = [g for g in report.graphs if g.last_run]
    names = [("process_name", COMPILE_THREAD, f"tofuse {report.title}")]
    names.append(("thread_name", COMPILE_THREAD, "compile"))
    if runs:
        names.append(("thread_name", RUN_THREAD, "run: kernels and library calls"))
    if any(g.collectives for g in runs):
        names.append(("thread_name", COLLECTIVE_THREAD, "collectives, from start to wait"))
    events: list[Event] = [
        {"ph": "M", "name": kind, "tid": thread, "ts": 0, "args": {"name": name}}
        for kind, thread, name in names
    ]
    for g in report.graphs:
        events += [_span(s, COMPILE_THREAD, f"compile {g.phase}", {}) for s in g.stages]
        args = {r.name: _region_args(g, r) for r in g.regions}
        events += [_span(s, RUN_THREAD, g.phase, args.get(s.name, {})) for s in g.last_run]
        events += _collective_events(g)
    spans = [s for g in report.graphs for s in (*g.stages, *g.last_run)]
    first = min((s.begin for s in spans), default=math.inf) / 1e3
    return RankTrace(socket.gethostname(), first, tuple(e | {"pid": process} for e in events))


def _span(span: TimeSpan, thread: int, category: str, args: Args) -> Event:
    return {
        "ph": "X",
        "name": span.name,
        "cat": category,
        "tid": thread,
        "ts": span.begin / 1e3,
        "dur": span.us,
        "args": args,
    }


def _collective_events(graph: GraphReport) -> list[Event]:
    """Return an event for each collective of the last measured run."""
    step_of_name = {r.name: k for k, r in graph.step_regions().items()}
    spans = {step_of_name[s.name]: s for s in graph.last_run if s.name in step_of_name}
    events = []
    for c in graph.collectives if graph.last_run else ():
        last = spans.get(c.start if c.wait is None else c.wait)
        if c.start in spans and last is not None:
            span = TimeSpan(c.name, spans[c.start].begin, last.end)
            events.append(_span(span, COLLECTIVE_THREAD, graph.phase, _collective_args(c)))
    return events


def _collective_args(c: Collective) -> Args:
    return {
        "group": c.group,
        "operand_bytes": c.operand_bytes,
        "result_bytes": c.result_bytes,
        "overlapped": ", ".join(r.name for r in c.overlapped),
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
