"""The programs that must not be slower than eager, and the table of the worst."""

import pytest
import torch

from suites.harness import Result
from suites.never_slower.measure import make_inputs, make_step
from suites.never_slower.table import PROGRAMS, list_cases, worst_cases


def test_there_are_a_hundred_programs_in_four_ways():
    assert len(PROGRAMS) == 100 and len(list_cases()) == 400


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs_forward_and_backward(name):
    program = PROGRAMS[name]
    called = program.make()
    for training in (False, True):
        step = make_step(called, make_inputs(program, called, training), training)
        with torch.set_grad_enabled(training):
            assert step() is not None


def test_the_worst_ratios_come_first():
    data: list[dict[str, str | int | float | list[str]]] = [
        {"ratio": 2.0, "peak_ratio": 0.9},
        {"ratio": 0.5, "peak_ratio": 1.5},
    ]
    cases = list_cases()
    results = {c: Result(c, "ok", "", d) for c, d in zip(cases, data, strict=False)}
    lines = worst_cases(results).splitlines()
    assert lines[0] == "eager's time over ours"
    assert "0.500" in lines[2] and cases[1] in lines[2] and cases[0] in lines[3]
    assert "0.900" in lines[8]
