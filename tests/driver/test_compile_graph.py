"""A backward accepts gradients of any strides, without more memory than eager."""

import pytest
import torch
import torch.nn.functional as F

import tofuse.driver.compile_graph
from tests.support.peak import peak_bytes
from tofuse.backends.aten.run_graph import eager_graph_callable
from tofuse.runtime.execute import restride


def normed(x, weight):
    return F.batch_norm(x, None, None, weight, None, training=True)


def images(layout):
    x = torch.randn(4, 8, 16, 16).contiguous(memory_format=layout)
    return x.requires_grad_(), torch.rand(8, requires_grad=True)


def gradient(result, kind):
    match kind:
        case "contiguous":
            return torch.rand(result.shape)
        case "channels last":
            return torch.rand(result.shape).contiguous(memory_format=torch.channels_last)
        case "expanded":
            return torch.rand(()).expand(result.shape)
        case "permuted":
            return torch.rand(result.shape[::-1]).permute(3, 2, 1, 0)
    raise AssertionError(kind)


KINDS = ("contiguous", "channels last", "expanded", "permuted")


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_gradients_of_any_strides(layout, capture):
    inputs = images(layout)
    compiled = tofuse.compile(normed, capture=capture)
    for kind in KINDS * 3:
        grad_output = gradient(inputs[0], kind)
        expected = torch.autograd.grad(normed(*inputs), inputs, grad_output)
        got = torch.autograd.grad(compiled(*inputs), inputs, grad_output)
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)  # sums over 1024


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
def test_gradient_of_a_result_that_overlaps_itself(capture):
    x = torch.randn(10, requires_grad=True)

    def windows(x):
        return (x * 2).unfold(0, 3, 1)

    compiled = tofuse.compile(windows, capture=capture)
    for _ in range(3):
        grad_output = torch.randn(8, 3)
        (expected,) = torch.autograd.grad(windows(x), x, grad_output)
        torch.testing.assert_close(torch.autograd.grad(compiled(x), x, grad_output)[0], expected)


def test_restride_keeps_strides_of_zero():
    grad_output = torch.rand(2, 1, 3).expand(2, 4, 3)
    restrided = restride(grad_output, (1, 0, 2))
    assert restrided.stride() == (1, 0, 2) and torch.equal(restrided, grad_output)


@pytest.mark.parametrize("kind", ["contiguous", "expanded", "permuted"])
def test_other_strides_are_not_copied_after_two_calls(kind):
    inputs = images(torch.channels_last)
    grad_output = gradient(inputs[0], kind)

    def step(fn):
        return lambda *args: torch.autograd.grad(fn(*args), args, grad_output)

    detached = [x.detach().requires_grad_() for x in inputs]
    compiled, eager = step(tofuse.compile(normed)), step(normed)
    for _ in range(3):
        compiled(*detached)
    assert peak_bytes(compiled, *detached) <= peak_bytes(eager, *detached) + 4096


def test_library_calls_get_the_traced_strides():
    def pooled(x):
        return F.max_pool2d(x * 2, 2)

    x = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
    compiled = tofuse.compile(pooled)
    for _ in range(4):
        grad_output = torch.rand(2, 3, 2, 2)
        got = torch.autograd.grad(compiled(x), x, grad_output)
        expected = torch.autograd.grad(pooled(x), x, grad_output)
        torch.testing.assert_close(got, expected)


def test_a_backward_that_falls_back_to_pytorch_gets_the_traced_strides(monkeypatch):
    def reject(*args):
        raise tofuse.errors.CaptureError("unsupported")

    def flat(x):
        return (x * 2).permute(1, 0).sin()

    x = torch.randn(3, 4, requires_grad=True)
    grad_output = torch.rand(2, 4, 3)[1]
    monkeypatch.setattr(tofuse.driver.compile_graph, "convert", reject)
    (got,) = torch.autograd.grad(tofuse.compile(flat)(x), x, grad_output)
    (expected,) = torch.autograd.grad(flat(x), x, grad_output)
    torch.testing.assert_close(got, expected)


def test_graph_runner_restrides_gradients():
    graph = torch.fx.Graph()
    tangent = graph.placeholder("tangents_1")
    tangent.meta["val"] = torch.empty(4, 3)
    graph.output([graph.call_function(torch.ops.aten.view.default, (tangent, [12]))])
    run = eager_graph_callable(torch.fx.GraphModule({}, graph))
    grad_output = torch.rand(3, 4).t()
    (flat,) = run([grad_output])
    torch.testing.assert_close(flat, grad_output.reshape(12), rtol=0, atol=0)


def test_other_strides_are_compiled_at_their_first_call(monkeypatch, empty_cache_on_disk):
    inputs = images(torch.channels_last)
    compiled = tofuse.compile(normed)
    compilations = []
    grad_output = gradient(inputs[0], "channels last")
    torch.autograd.grad(compiled(*inputs), inputs, grad_output)
    original = tofuse.driver.function_record.compile_captured

    def count_compilation(*args):
        compilations.append(args)
        return original(*args)

    monkeypatch.setattr(tofuse.driver.function_record, "compile_captured", count_compilation)
    for _ in range(3):
        torch.autograd.grad(compiled(*inputs), inputs, gradient(inputs[0], "contiguous"))
        assert len(compilations) == 1
