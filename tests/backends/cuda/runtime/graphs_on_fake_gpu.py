"""CUDA graphs of plans, recorded and replayed in Triton's interpreter; see test_gpu_driver.py."""

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.fake_gpu import FakeGpu, compile_for

__all__ = ["compile_for"]  # a fixture

pytestmark = [
    pytest.mark.usefixtures("fresh_dynamo"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

GRAPHS = {"mode": "reduce-overhead"}


def two_launches(x, w):
    return F.gelu(x) * 2, w.sin() + 1


def test_a_graph_is_replayed_once_the_places_of_arguments_recur(compile_for):
    gpu = FakeGpu()
    run, _ = compile_for(gpu, two_launches, **GRAPHS)
    w = torch.randn(13)
    for k in range(6):
        x = torch.randn(7, 11)  # elsewhere in each call: it is copied
        torch.testing.assert_close(run(x, w), two_launches(x, w))
        assert gpu.replays == max(0, k - 2)


def test_results_that_are_held_are_not_overwritten(compile_for):
    gpu, held = FakeGpu(), []
    run, _ = compile_for(gpu, two_launches, **GRAPHS)
    w = torch.randn(13)
    for k in range(12):
        x = torch.randn(7, 11)
        got = run(x, w)
        held.append((got[k % 2][1:], two_launches(x, w)[k % 2][1:]))  # a view holds the memory
        if k == 7:
            replays, held = gpu.replays, held[-1:]
    assert replays == 2  # two graphs, whose results were held
    assert gpu.replays > replays
    for got, want in held:
        torch.testing.assert_close(got, want)


def test_an_optimiser_updates_its_tensors_in_replays(compile_for):
    gpu, weights = FakeGpu(), [torch.randn(s) for s in ((5,), (16, 3), (64,))]
    states = []
    for compiled in (False, True):
        parameters = [w.clone().requires_grad_() for w in weights]
        for p in parameters:
            p.grad = torch.zeros_like(p)
        optimiser = torch.optim.AdamW(parameters, lr=0.1)
        step = optimiser.step
        for k in range(7):
            for p in parameters:
                assert p.grad is not None
                p.grad.copy_(p.detach().sin() * (k + 1))
            if k == 1 and compiled:
                step, _ = compile_for(gpu, optimiser.step, **GRAPHS)
            step()
        states.append(parameters)
    torch.testing.assert_close(*states)
    assert gpu.replays == 4


def test_a_training_step_replays_forward_and_backward(compile_for):
    gpu = FakeGpu()
    run, _ = compile_for(gpu, two_launches, **GRAPHS)
    made = [torch.randn(s) for s in ((7, 11), (13,))]
    inputs = [t.clone().requires_grad_() for t in made]
    for k in range(8):
        found = []
        for step in (two_launches, run):
            for t in inputs:
                t.grad = None
            out = step(*inputs)
            loss = sum(t.sum() for t in out) if k % 2 else (out[0] * k).sum() + out[1].cos().sum()
            loss.backward()
            grads = [t.grad.clone() for t in inputs if t.grad is not None]
            found.append([*(t.detach().clone() for t in out), *grads])
        torch.testing.assert_close(*found)
    assert gpu.replays >= 8  # though `out` holds the results of the step before


def test_a_retained_graph_is_differentiated_twice(compile_for):
    gpu = FakeGpu()
    run, _ = compile_for(gpu, two_launches, **GRAPHS)
    x, w = torch.randn(7, 11, requires_grad=True), torch.randn(13, requires_grad=True)
    for _ in range(5):
        out = run(x, w)[0]
        first = torch.autograd.grad(out.sum(), x, retain_graph=True)
        second = torch.autograd.grad(out.sum(), x)
        want = torch.autograd.grad(two_launches(x, w)[0].sum(), x)
        torch.testing.assert_close(first, want)
        torch.testing.assert_close(second, want)


def test_arguments_that_move_are_copied_from_then_on(compile_for):
    gpu = FakeGpu()
    run, _ = compile_for(gpu, two_launches, **GRAPHS)
    x, w = torch.randn(7, 11), torch.randn(13)
    for _ in range(4):
        run(x, w)
    assert gpu.replays == 2
    kept = []
    for _ in range(6):
        kept.append(torch.randn(7, 11))
        torch.testing.assert_close(run(kept[-1], w), two_launches(kept[-1], w))
    assert gpu.replays == 7  # one call ran the plan


def test_a_plan_that_cannot_be_recorded_runs(compile_for):
    class Unable(FakeGpu):
        def record(self, function):
            raise RuntimeError("operation not permitted when stream is capturing")

    run, _ = compile_for(Unable(), two_launches, **GRAPHS)
    x, w = torch.randn(7, 11), torch.randn(13)
    with pytest.warns(tofuse.TofuseWarning, match="no CUDA graph .* not permitted"):
        for _ in range(4):
            torch.testing.assert_close(run(x, w), two_launches(x, w))


def embedded(table, scale):
    ids = torch.tensor([[1, 4, 1], [0, 6, 2]])
    return F.embedding(ids, table) * scale, table.sin().sum(0)


def test_constants_are_no_arguments(compile_for):
    gpu = FakeGpu()
    run, _ = compile_for(gpu, embedded, **GRAPHS)
    table, scale = torch.randn(7, 8), torch.randn(8)
    for _ in range(5):
        torch.testing.assert_close(run(table, scale), embedded(table, scale))
    assert gpu.replays


def test_tangents_at_one_address_with_other_strides(compile_for):
    gpu = FakeGpu()
    run, _ = compile_for(gpu, two_launches, **GRAPHS)
    x, w = torch.randn(8, 8, requires_grad=True), torch.randn(13, requires_grad=True)
    tangent, other = torch.randn(8, 8), torch.randn(13)
    transposed = torch.empty(0).set_(tangent.untyped_storage(), 0, (8, 8), (1, 8))
    expanded = torch.ones(()).expand(8, 8)
    for k in range(14):
        given = (tangent, transposed, expanded, torch.randn(8, 8))[(k // 4) % 4]
        got = torch.autograd.grad(run(x, w), (x, w), (given, other))
        want = torch.autograd.grad(two_launches(x, w), (x, w), (given, other))
        torch.testing.assert_close(got, want)
    assert gpu.replays


def views(x):
    return x.softmax(-1).view(77), x.sin().sum(0)


def test_a_write_into_a_view_of_a_saved_result_raises(compile_for):
    gpu = FakeGpu()
    run, _ = compile_for(gpu, views, **GRAPHS)
    x = torch.randn(7, 11, requires_grad=True)
    for _ in range(6):
        out = run(x)
        out[0].detach().mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(out[0].sum() + out[1].sum(), x)
        del out
    assert gpu.replays


def test_a_bad_index_of_an_earlier_call_raises(compile_for):
    gpu = FakeGpu()
    run, _ = compile_for(gpu, lambda t, i: (t.sum(0), t[i] * 2), **GRAPHS)
    table, good, bad = torch.randn(10, 4), torch.tensor([1, -2]), torch.tensor([1, 12])
    for k in range(12):
        if k and k % 3 == 0:
            run(table, bad)
            with pytest.raises(IndexError, match="out of range"):
                run(table, good)
        torch.testing.assert_close(run(table, good)[1], table[good] * 2)
    assert gpu.replays


def test_a_result_that_is_resized_ends_its_graph(compile_for):
    gpu = FakeGpu()
    run, _ = compile_for(gpu, two_launches, **GRAPHS)
    w = torch.randn(13)
    for k in range(10):
        x = torch.randn(7, 11)
        out = run(x, w)
        torch.testing.assert_close(out, two_launches(x, w))
        if k == 5:
            out[0].resize_(5000)
        del out
    assert gpu.replays > 4


def test_one_launch_is_not_recorded(compile_for):
    gpu = FakeGpu()
    run, _ = compile_for(gpu, lambda *xs: [x.sin() for x in xs], **GRAPHS)
    xs = [torch.randn(16, 3) for _ in range(5)]  # a group
    for _ in range(6):
        run(*xs)
    assert not gpu.replays
