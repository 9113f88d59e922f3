"""A backward reuses the memory of saved tensors exactly if nothing else holds them."""

import contextlib
from sys import getrefcount

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

import tofuse
from tofuse.backends.cpu.runtime.pool import LOCAL_REFERENCES, POOL, is_shared

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

SIZE = 300  # rows of floats: more than the pool's smallest block


def sine_of_product(x, w):
    return (x @ w).sin()


def returns_view(x, w):
    y = (x @ w).sin()
    return (y.cos() * 2).view(-1)


def operands():
    """Two matrices with a product of about 1, so that its sine is as accurate as the product."""
    torch.manual_seed(0)
    return [(torch.randn(SIZE, SIZE) / SIZE**0.25).requires_grad_() for _ in range(2)]


def gradients(tensors):
    grads = [t.grad.clone() for t in tensors]
    for t in tensors:
        t.grad = None
    return grads


def eager_gradients(fn, tensors, cotangent):
    return torch.autograd.grad(fn(*tensors), tensors, cotangent)


def test_the_plan_marks_large_donated_tensors():
    report = tofuse.explain(sine_of_product)(*operands())
    backward = next(g for g in report.graphs if g.phase == "backward")
    assert "~" in backward.plan.partition("\n")[0]
    small = [torch.randn(8, 8, requires_grad=True) for _ in range(2)]
    report = tofuse.explain(sine_of_product)(*small)
    assert all("~" not in g.plan.partition("\n")[0] for g in report.graphs)


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.parametrize("fn", [sine_of_product, returns_view])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_saved_tensor_is_reused_without_a_copy(fn, capture, autocast, monkeypatch):
    copies = []
    clone = torch.Tensor.clone

    def record_clone(t):
        copies.append(t.shape)
        return clone(t)

    monkeypatch.setattr(torch.Tensor, "clone", record_clone)
    tensors = operands()
    compiled = tofuse.compile(fn, capture=capture)
    for _ in range(3):
        with torch.autocast("cpu") if autocast else contextlib.nullcontext():
            out = compiled(*tensors)
        copies.clear()  # ignore those of the compilation
        out.sum().backward()
    assert (SIZE, SIZE) not in copies
    out = compiled(*tensors)
    out.sum().backward(retain_graph=True)
    assert (SIZE, SIZE) in copies


@pytest.mark.parametrize("fn", [sine_of_product, returns_view])
def test_a_retained_graph_runs_repeatedly(fn):
    tensors = operands()
    out = tofuse.compile(fn)(*tensors)
    cotangent = torch.randn_like(out)
    wanted = eager_gradients(fn, tensors, cotangent)
    for retained in (True, True, False):
        out.backward(cotangent, retain_graph=retained)
        torch.testing.assert_close(gradients(tensors), list(wanted))


@pytest.mark.parametrize(
    ("capture", "dynamic"), [("dynamo", False), ("dynamo", True), ("trace", False)]
)
@pytest.mark.parametrize("autocast", [False, True])
def test_the_graph_of_a_later_call_is_retained(capture, dynamic, autocast):
    model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.SiLU(), nn.BatchNorm1d(SIZE), nn.ReLU())
    compiled = tofuse.compile(model, capture=capture, dynamic=dynamic)
    x = torch.randn(SIZE, SIZE, requires_grad=True)
    for retained in (False, True):
        with torch.autocast("cpu") if autocast else contextlib.nullcontext():
            out = compiled(x).float().square().sum()
        out.backward(retain_graph=retained)
        (first,) = gradients([x])
    out.backward()
    torch.testing.assert_close(x.grad, first)


@pytest.mark.parametrize("alias", [lambda t: t, lambda t: t.detach(), lambda t: t.view(-1)])
def test_tensors_held_by_hooks_are_not_changed(alias):
    tensors = operands()
    held = []

    def pack(t):
        held.append((alias(t), t.clone()))
        return t.detach()

    with saved_tensors_hooks(pack, lambda t: t):
        out = tofuse.compile(sine_of_product)(*tensors)
    wanted = eager_gradients(sine_of_product, tensors, torch.ones_like(out))
    out.sum().backward()
    torch.testing.assert_close(gradients(tensors), list(wanted))
    assert held and all(torch.equal(t.flatten(), copy.flatten()) for t, copy in held)


def test_numpy_arrays_behind_hooks_are_not_changed():
    tensors, arrays = operands(), []

    def pack(t):
        arrays.append(t.detach().numpy().copy())
        return len(arrays) - 1

    with saved_tensors_hooks(pack, lambda k: torch.from_numpy(arrays[k])):
        out = tofuse.compile(sine_of_product)(*tensors)
    before = [array.copy() for array in arrays]
    wanted = eager_gradients(sine_of_product, tensors, torch.ones_like(out))
    for retained in (True, False):
        out.sum().backward(retain_graph=retained)
        torch.testing.assert_close(gradients(tensors), list(wanted))
    assert arrays and all((a == b).all() for a, b in zip(arrays, before, strict=True))


def test_saved_tensors_held_by_the_user_are_not_changed():
    tensors = operands()
    out = tofuse.compile(sine_of_product, capture="trace")(*tensors)
    saved = [t for t in out.grad_fn.saved_tensors if t is not None]
    before = [t.clone() for t in saved]
    out.sum().backward()
    assert all(torch.equal(t, b) for t, b in zip(saved, before, strict=True))


def test_results_that_are_also_saved_are_not_changed():
    def run(x, w):
        y = x @ w
        return y, F.gelu(y)

    tensors = operands()
    y, z = tofuse.compile(run)(*tensors)
    before = y.detach().clone()
    z.sum().backward()
    assert torch.equal(y, before)


@pytest.mark.parametrize("pooled", [False, True])
def test_is_shared_detects_other_holders(pooled, monkeypatch):
    monkeypatch.setattr(POOL, "limit", max(POOL.limit, 1 << 24))
    size = (SIZE, SIZE)
    nbytes = SIZE * SIZE * 4
    t = POOL.empty(nbytes, size, (SIZE, 1), torch.float32) if pooled else torch.empty(size)
    assert not is_shared(t)
    other = t[0]
    assert is_shared(t)
    del other
    storage = t.untyped_storage()
    assert is_shared(t)
    del storage
    several = [t]
    assert getrefcount(t) > LOCAL_REFERENCES
    del several
    assert not is_shared(t)
    assert getrefcount(t) == LOCAL_REFERENCES


def test_reference_counts_are_the_same_under_dynamo():
    """Dynamo's frame evaluation adds references to the arguments of Python functions."""
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    t = torch.empty(SIZE, SIZE)
    assert getrefcount(t) == LOCAL_REFERENCES and not is_shared(t)
