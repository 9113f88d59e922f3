"""The trace is in the trace event format and describes each region."""

import itertools
import json

import pytest
import torch

import tofuse
from tests.support.sample_reports import measured_block

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def trace_of(report, tmp_path):
    path = report.save_trace(tmp_path / "new" / "trace.json")
    return json.loads(path.read_text())


def test_events_are_well_formed(tmp_path):
    report = measured_block()
    trace = trace_of(report, tmp_path)
    assert set(trace) == {"traceEvents", "displayTimeUnit"} and trace["displayTimeUnit"] == "ns"
    threads = set()
    for e in trace["traceEvents"]:
        assert e["ph"] in ("M", "X") and isinstance(e["name"], str) and e["name"]
        assert isinstance(e["pid"], int) and isinstance(e["tid"], int)
        assert isinstance(e["ts"], (int, float)) and e["ts"] >= 0
        if e["ph"] == "M":
            assert e["name"] in ("process_name", "thread_name") and e["args"]["name"]
            threads.add(e["tid"])
        else:
            assert e["dur"] >= 0 and isinstance(e["args"], dict) and e["cat"]
    complete = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert {e["tid"] for e in complete} == threads == {1, 2}
    for tid in threads:  # events of one thread do not overlap
        events = sorted((e for e in complete if e["tid"] == tid), key=lambda e: e["ts"])
        for a, b in itertools.pairwise(events):
            assert a["ts"] + a["dur"] <= b["ts"] + 1e-3


def test_run_events_describe_their_regions(tmp_path):
    report = measured_block()
    run = {e["name"]: e["args"] for e in trace_of(report, tmp_path)["traceEvents"] if e["tid"] == 2}
    for r in report.regions:
        assert run[r.name]["bytes"] == r.nbytes and run[r.name]["median_us"] == r.measured_us
    products = [a for a in run.values() if "aten.mm.default" in a.get("ops", "")]
    assert products and any("library call" in a.get("not fused with", "") for a in products)


def test_unmeasured_trace_has_compilation_stages_only(tmp_path):
    report = tofuse.explain(lambda x: x.sin())(torch.randn(3))
    events = trace_of(report, tmp_path)["traceEvents"]
    assert [e["name"] for e in events if e["ph"] == "X"] == [
        "passes",
        "partition",
        "lower and emit",
        "machine code",
        "plan",
    ]
    total = sum(e["dur"] for e in events if e["ph"] == "X") / 1e3
    assert total == pytest.approx(report.compile_ms, rel=1e-3)
