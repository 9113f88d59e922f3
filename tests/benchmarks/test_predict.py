"""The comparison of predicted and measured times covers every region of a workload."""

import pytest

from benchmarks.predict import GOAL, Row, main, predict, table
from benchmarks.workloads.catalogue import pick


@pytest.mark.usefixtures("fresh_dynamo")
def test_every_kernel_of_a_workload_has_both_times():
    rows = predict(pick("softmax_backward"), "small", 0.001)
    assert [r.phase for r in rows] == ["forward", "backward"]
    assert all(r.predicted_us > 0.1 and r.measured_us > 0.1 and not r.library for r in rows)
    assert table(rows).row_count == 2


def test_errors_are_in_proportion_to_what_is_measured():
    assert Row("w", "forward", "r", False, 15.0, 10.0).error == 0.5
    assert Row("w", "forward", "r", False, 8.0, 10.0).error < GOAL


@pytest.mark.usefixtures("fresh_dynamo")
def test_the_command_prints_and_judges(capsys):
    status = main(["--only", "softmax", "--size", "small", "--seconds", "0.001"])
    assert status in (0, 1)
    assert "kernels: median error" in capsys.readouterr().out
