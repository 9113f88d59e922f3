"""The times of calls and regions under `explain(fn, measure=True)`."""

import itertools

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.sample_reports import block, block_arguments

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def test_every_region_has_a_time():
    arguments = block_arguments()
    report = tofuse.explain(block, measure=True)(*arguments)
    assert report.name == "block" and report.backward.regions
    assert all(r.measured_us is not None and r.measured_us > 0 for r in report.regions)
    assert all(t.grad is None for t in arguments)
    calls = report.calls
    assert calls is not None and calls.rounds == 7
    assert min(calls.eager_forward, calls.eager_backward, calls.forward, calls.backward) > 0
    inside = sum(r.measured_us or 0.0 for r in report.forward.regions)
    assert inside < 2 * calls.forward  # the sum of medians may exceed the median of the whole
    assert report.limits is not None
    for g in report.graphs:
        assert [s.name for s in g.last_run] == [r.name for r in g.regions]
        assert all(a.end <= b.begin for a, b in itertools.pairwise(g.last_run))


def test_nothing_is_measured_by_default():
    runs = 0

    def f(x):
        nonlocal runs
        if not torch.compiler.is_compiling():
            runs += 1
        return x.sin() + 1

    report = tofuse.explain(f)(torch.randn(4))
    assert report.calls is None and report.limits is None and runs == 0
    assert all(r.measured_us is None for r in report.regions)
    assert all(not g.last_run for g in report.graphs)


def test_measuring_does_not_change_random_numbers():
    """Dropout draws its masks from the same seeds with and without measuring."""
    x = torch.ones(64, 64)
    results = []
    for measure in (False, True):
        seen: list[torch.Tensor] = []

        def f(x):
            y = torch.nn.functional.dropout(x, 0.5) * 2
            seen.append(y)  # noqa: B023  (called before the next round)
            return y

        torch.manual_seed(3)
        tofuse.explain(f, measure=measure)(x)
        results.append(seen[0])
    assert torch.equal(*results)


def test_plan_steps_map_to_regions():
    report = tofuse.explain(lambda x: (x.sin() @ x.cos()).exp().sort())(torch.randn(8, 8))
    (graph,) = report.graphs
    assert list(graph.step_regions().values()) == list(graph.regions)


def test_library_call_with_out_argument_has_a_time():
    """A library call writes a large result into a buffer of the plan and returns nothing."""
    report = tofuse.explain(lambda x: F.avg_pool2d(x.sin().flip(0), 6, 1).exp(), measure=True)(
        torch.randn(1, 300, 300)
    )
    (graph,) = report.graphs
    assert ".out(" in graph.plan
    assert [s.name for s in graph.last_run] == [r.name for r in graph.regions]
    assert all(r.measured_us for r in graph.regions)


def test_traced_function_is_measured():
    report = tofuse.explain(block, measure=True, capture="trace")(*block_arguments())
    assert report.backward.regions
    assert all(r.measured_us is not None and r.measured_us > 0 for r in report.regions)


def test_program_without_regions_has_call_times():
    report = tofuse.explain(lambda x: x.view(-1), measure=True)(torch.randn(4, 4))
    assert report.calls is not None and not report.regions
