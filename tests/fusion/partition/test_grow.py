"""Growing kernels takes time in proportion to the ops of a program: counts, not clocks."""

import pytest
import torch

import tofuse
from benchmarks import long_programs
from tofuse.fusion import lowering_memo
from tofuse.fusion.partition.region_evaluator import RegionEvaluator

pytestmark = pytest.mark.usefixtures("fresh_dynamo", "empty_cache_on_disk")

MAX_LOWERINGS_OF_AN_OP = 20
MAX_EVALUATIONS_OF_AN_OP = 2


@pytest.fixture
def counts(monkeypatch):
    """Count the ops that are lowered, and the evaluations of candidate kernels."""
    found = {"lowered": 0, "evaluated": 0}
    lower_region, evaluate = lowering_memo.lower_region, RegionEvaluator.evaluate

    def counted_lowering(region, *args, **options):
        found["lowered"] += len(region.ops)
        return lower_region(region, *args, **options)

    def counted_evaluation(*args):
        found["evaluated"] += 1
        return evaluate(*args)

    monkeypatch.setattr(lowering_memo, "lower_region", counted_lowering)
    monkeypatch.setattr(RegionEvaluator, "evaluate", counted_evaluation)
    return found


def scan(steps, batch):
    """Return a recurrence of RWKV, unrolled, with its arguments."""

    def program(r, k, v, w, u):
        state, results = torch.zeros(batch, 4, 16, 16), []
        for t in range(steps):
            kv = k[:, t].unsqueeze(-1) * v[:, t].unsqueeze(-2)
            results.append((r[:, t].unsqueeze(-1) * (state + u * kv)).sum(-2))
            state = state * torch.exp(-torch.exp(w[:, t])).unsqueeze(-1) + kv
        return torch.stack(results, 1)

    return program, [*[torch.randn(batch, steps, 4, 16) for _ in range(4)], torch.randn(4, 16, 1)]


def optimizer(tensors):
    """Return a step of an optimizer that divides by the root of the gradients' size."""

    def step(parameters, gradients):
        sizes = torch._foreach_sqrt(torch._foreach_abs(gradients))
        return torch._foreach_sub(parameters, torch._foreach_div(gradients, sizes))

    return step, [[torch.rand(8, 8) for _ in range(tensors)] for _ in range(2)]


PROGRAMS = {
    "chain": lambda size: long_programs.long_chain(200 * size),
    "DAG": lambda size: long_programs.long_ladder_with_gradients(30 * size),
    "layers": lambda size: long_programs.many_layers(15 * size),
    "recursive doubling": lambda size: long_programs.long_scan(16 * size),
    "optimizer": lambda size: optimizer(250 * size),
}


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("program", PROGRAMS)
def test_ops_of_long_programs_are_evaluated_a_few_times(counts, program, size):
    function, args = PROGRAMS[program](size)
    report = tofuse.explain(function)(*args)
    ops = sum(len(graph.partition.graph.ops) for graph in report.graphs)
    assert counts["lowered"] <= MAX_LOWERINGS_OF_AN_OP * ops
    assert counts["evaluated"] <= MAX_EVALUATIONS_OF_AN_OP * ops


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("batch", [2, 32])
@pytest.mark.parametrize("steps", [16, 64])
def test_ops_of_recurrences_are_lowered_a_few_times(counts, steps, batch, trains):
    program, args = scan(steps, batch)
    args = [x.requires_grad_(trains) for x in args]
    report = tofuse.explain(program)(*args)
    ops = sum(len(graph.partition.graph.ops) for graph in report.graphs)
    assert counts["lowered"] <= MAX_LOWERINGS_OF_AN_OP * ops
    torch.testing.assert_close(tofuse.compile(program)(*args), program(*args), rtol=1e-3, atol=1e-3)
