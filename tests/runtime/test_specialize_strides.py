"""A backward takes gradients as they lie, and holds no more for it than eager."""

import pytest
import torch
import torch.nn.functional as F

import tofuse.driver.pipeline
from tests.support.peak import peak_bytes
from tofuse.backends.aten.run_ops import graph_runner
from tofuse.runtime.execute import _relay


def normed(x, weight):
    return F.batch_norm(x, None, None, weight, None, training=True)


def images(layout):
    x = torch.randn(4, 8, 16, 16).contiguous(memory_format=layout)
    return x.requires_grad_(), torch.rand(8, requires_grad=True)


def gradient(result, kind):
    match kind:
        case "rows":
            return torch.rand(result.shape)
        case "channels last":
            return torch.rand(result.shape).contiguous(memory_format=torch.channels_last)
        case "one number":
            return torch.rand(()).expand(result.shape)
        case "permuted":
            return torch.rand(result.shape[::-1]).permute(3, 2, 1, 0)
    raise AssertionError(kind)


KINDS = ("rows", "channels last", "one number", "permuted")


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_gradients_of_every_layout(layout, capture):
    inputs = images(layout)
    fast = tofuse.compile(normed, capture=capture)
    for kind in KINDS * 3:
        given = gradient(inputs[0], kind)
        expected = torch.autograd.grad(normed(*inputs), inputs, given)
        got = torch.autograd.grad(fast(*inputs), inputs, given)
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)  # sums over 1024


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
def test_gradients_of_a_result_that_overlaps_itself(capture):
    x = torch.randn(10, requires_grad=True)

    def windows(x):
        return (x * 2).unfold(0, 3, 1)

    fast = tofuse.compile(windows, capture=capture)
    for _ in range(3):
        given = torch.randn(8, 3)
        (expected,) = torch.autograd.grad(windows(x), x, given)
        torch.testing.assert_close(torch.autograd.grad(fast(x), x, given)[0], expected)


def test_what_is_repeated_is_laid_out_once():
    given = torch.rand(2, 1, 3).expand(2, 4, 3)
    laid = _relay(given, (1, 0, 2))
    assert laid.stride() == (1, 0, 2) and torch.equal(laid, given)


@pytest.mark.parametrize("kind", ["rows", "one number", "permuted"])
def test_another_layout_is_not_copied(kind):
    inputs = images(torch.channels_last)
    given = gradient(inputs[0], kind)

    def step(fn):
        return lambda *args: torch.autograd.grad(fn(*args), args, given)

    detached = [x.detach().requires_grad_() for x in inputs]
    fast, usual = step(tofuse.compile(normed)), step(normed)
    for _ in range(3):
        fast(*detached)
    assert peak_bytes(fast, *detached) <= peak_bytes(usual, *detached) + 4096


def test_what_pytorch_runs_gets_the_layout_it_was_traced_with():
    def pooled(x):
        return F.max_pool2d(x * 2, 2)

    x = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
    fast = tofuse.compile(pooled)
    for _ in range(4):
        given = torch.rand(2, 3, 2, 2)
        got = torch.autograd.grad(fast(x), x, given)
        expected = torch.autograd.grad(pooled(x), x, given)
        torch.testing.assert_close(got, expected)


def test_a_backward_that_pytorch_runs_gets_the_layout_it_was_traced_with(monkeypatch):
    def refuse(*args):
        raise tofuse.errors.CaptureError("not this one")

    def flat(x):
        return (x * 2).permute(1, 0).sin()

    x = torch.randn(3, 4, requires_grad=True)
    given = torch.rand(2, 4, 3)[1]
    monkeypatch.setattr(tofuse.driver.pipeline, "convert", refuse)
    (got,) = torch.autograd.grad(tofuse.compile(flat)(x), x, given)
    (expected,) = torch.autograd.grad(flat(x), x, given)
    torch.testing.assert_close(got, expected)


def test_the_runner_of_a_graph_lays_gradients_out():
    graph = torch.fx.Graph()
    tangent = graph.placeholder("tangents_1")
    tangent.meta["val"] = torch.empty(4, 3)
    graph.output([graph.call_function(torch.ops.aten.view.default, (tangent, [12]))])
    run = graph_runner(torch.fx.GraphModule({}, graph))
    given = torch.rand(3, 4).t()
    (flat,) = run([given])
    torch.testing.assert_close(flat, given.reshape(12), rtol=0, atol=0)


def test_one_call_of_another_layout_compiles_nothing(monkeypatch):
    inputs = images(torch.channels_last)
    fast = tofuse.compile(normed)
    compiled = []
    given = gradient(inputs[0], "channels last")
    torch.autograd.grad(fast(*inputs), inputs, given)
    original = tofuse.driver.pipeline.compile_captured

    def counted(*args):
        compiled.append(args)
        return original(*args)

    monkeypatch.setattr(tofuse.driver.pipeline, "compile_captured", counted)
    for count in (0, 1, 1):
        torch.autograd.grad(fast(*inputs), inputs, gradient(inputs[0], "rows"))
        assert len(compiled) == count
