"""The comparison of predicted and measured times covers every region of a workload."""

import pytest

from benchmarks.predict import MAX_MEDIAN_ERROR, Row, main, predict, table
from benchmarks.workloads.catalogue import pick


@pytest.mark.usefixtures("fresh_dynamo")
def test_every_region_has_both_times():
    rows = predict(pick("softmax_backward"), "small", 0.001)
    assert [r.phase for r in rows] == ["forward", "backward"]
    assert all(r.predicted_us > 0.1 and r.measured_us > 0.1 and not r.library for r in rows)
    assert table(rows).row_count == 2


def test_error_is_relative_to_measured_time():
    assert Row("w", "forward", "r", False, 15.0, 10.0).error == 0.5
    assert Row("w", "forward", "r", False, 8.0, 10.0).error < MAX_MEDIAN_ERROR


@pytest.mark.usefixtures("fresh_dynamo")
def test_command_prints_median_errors(capsys):
    status = main(["--only", "softmax", "--size", "small", "--seconds", "0.001"])
    assert status in (0, 1)
    assert "kernels: median error" in capsys.readouterr().out
