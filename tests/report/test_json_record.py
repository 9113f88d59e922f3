"""The report as JSON."""

import json

import torch

import tofuse


def test_a_report_is_data_for_json(fresh_dynamo):
    def loss(x):
        return torch.softmax(x @ x.T, -1).sum()

    report = tofuse.explain(loss, measure=True)(torch.randn(8, 8, requires_grad=True))
    record = json.loads(json.dumps(report.as_dict()))
    assert record["kernels"] == len(report.kernels)
    assert record["bytes_after"] == report.bytes_after < record["bytes_before"]
    assert [g["phase"] for g in record["graphs"]] == ["forward", "backward"]
    regions = [r for g in record["graphs"] for r in g["regions"]]
    assert [r["name"] for r in regions] == [r.name for r in report.regions]
    assert all(r["measured_us"] > 0 for r in regions)
    verdicts = [v for g in record["graphs"] for v in g["verdicts"]]
    assert all(v["to_do"] for v in verdicts if v["rule"].startswith("library call"))
    assert {v["fused"] for g in record["graphs"] for v in g["verdicts"]} == {True, False}
    assert report.calls is not None and record["calls"]["rounds"] == report.calls.rounds


def test_a_notebook_shows_the_page_in_a_frame(fresh_dynamo):
    report = tofuse.explain(lambda x: x.sin() + 1)(torch.randn(3))
    frame = report._repr_html_()
    assert frame.startswith("<iframe srcdoc=") and frame.endswith("</iframe>")
    assert '"' not in frame.split('srcdoc="')[1].split('" style')[0]
