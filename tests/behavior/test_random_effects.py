"""Random programs whose autograd Functions write into tensors, against eager after each stage."""

import pytest
import torch

import tofuse
from tests.support.effect_programs import observe, random_program

PROGRAMS = 5000

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def observe_compiled(program, compiler):
    torch._dynamo.reset()
    return observe(program, compiler)


@pytest.mark.filterwarnings("ignore")  # of torch, about requires_grad and create_graph
def test_random_programs(some):
    """What eager gives; where it deviates by a limit of torch, what `aot_eager` gives.

    Dynamo itself does not raise some errors of eager: then the result is that of its own graph.
    """
    deviations = 0
    cases = some(range(PROGRAMS), 200)
    for seed in cases:
        program = random_program(seed)
        expected = observe(program, None)
        result = observe_compiled(program, tofuse.compile)
        if result.matches(expected):
            continue
        deviations += 1
        backends = ("aot_eager", "eager") if expected.error else ("aot_eager",)
        torch_results = (
            observe_compiled(program, lambda f, name=name: torch.compile(f, backend=name))
            for name in backends
        )
        assert any(map(result.matches, torch_results)), f"seed {seed}: {program}"
    assert deviations <= 0.05 * len(cases) + 1
