"""The functions whose gradients are timed, and the table of the worst ratios."""

import pytest
import torch

from suites.gradients.table import FUNCTIONS, SIZES, list_cases, time_steps, worst_cases
from suites.harness import Result
from suites.never_slower.measure import make_step


def test_each_function_has_three_sizes():
    assert len(FUNCTIONS) > 250 and len(list_cases()) == len(FUNCTIONS) * len(SIZES)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_a_gradient(name):
    function, shapes = FUNCTIONS[name]
    inputs = [torch.randn(shape).requires_grad_() for shape in shapes(300)]
    gradients = make_step(function, inputs, True)()
    assert isinstance(gradients, tuple) and any(g is not None for g in gradients)


def test_the_worst_ratios_come_first():
    slow, fast = list_cases()[:2]
    results = {
        fast: Result(fast, "ok", "", {"eager": 100.0, "tofuse": 100.0}),
        slow: Result(slow, "slower", "", {"eager": 100.0, "tofuse": 360.0}),
    }
    lines = worst_cases(results).splitlines()
    assert lines[1].split()[0] == "3.00" and slow in lines[1] and fast in lines[2]


def test_each_step_is_timed():
    assert all(us > 0 for us in time_steps([lambda: torch.ones(9), lambda: torch.ones(99)]))
