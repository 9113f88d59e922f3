"""A backward writes over what only it can see of what the forward saved, and over nothing else."""

import contextlib
from sys import getrefcount

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

import tofuse
from tofuse.runtime.pool import LOCAL, POOL, shared

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

SIZE = 300  # rows of floats: more than the pool's smallest block


def wave(x, w):
    return (x @ w).sin()


def viewed(x, w):
    y = (x @ w).sin()
    return (y.cos() * 2).view(-1)


def operands():
    """Two matrices whose product is about 1, so that its sine is as exact as it is."""
    torch.manual_seed(0)
    return [(torch.randn(SIZE, SIZE) / SIZE**0.25).requires_grad_() for _ in range(2)]


def gradients(tensors):
    found = [t.grad.clone() for t in tensors]
    for t in tensors:
        t.grad = None
    return found


def expected(fn, tensors, cotangent):
    return torch.autograd.grad(fn(*tensors), tensors, cotangent)


def test_the_plan_says_so():
    report = tofuse.explain(wave)(*operands())
    backward = next(g for g in report.graphs if g.phase == "backward")
    assert "~" in backward.plan.partition("\n")[0]
    small = [torch.randn(8, 8, requires_grad=True) for _ in range(2)]
    report = tofuse.explain(wave)(*small)
    assert all("~" not in g.plan.partition("\n")[0] for g in report.graphs)


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.parametrize("fn", [wave, viewed])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_saved_tensor_is_written_over_and_not_copied(fn, capture, autocast, monkeypatch):
    copies = []
    clone = torch.Tensor.clone

    def copied(t):
        copies.append(t.shape)
        return clone(t)

    monkeypatch.setattr(torch.Tensor, "clone", copied)
    tensors = operands()
    compiled = tofuse.compile(fn, capture=capture)
    for _ in range(3):
        with torch.autocast("cpu") if autocast else contextlib.nullcontext():
            out = compiled(*tensors)
        copies.clear()  # those of compiling
        out.sum().backward()
    assert (SIZE, SIZE) not in copies
    out = compiled(*tensors)
    out.sum().backward(retain_graph=True)
    assert (SIZE, SIZE) in copies


@pytest.mark.parametrize("fn", [wave, viewed])
def test_a_retained_graph_runs_again(fn):
    tensors = operands()
    out = tofuse.compile(fn)(*tensors)
    cotangent = torch.randn_like(out)
    wanted = expected(fn, tensors, cotangent)
    for retained in (True, True, False):
        out.backward(cotangent, retain_graph=retained)
        torch.testing.assert_close(gradients(tensors), list(wanted))


@pytest.mark.parametrize(
    ("capture", "dynamic"), [("dynamo", False), ("dynamo", True), ("trace", False)]
)
@pytest.mark.parametrize("autocast", [False, True])
def test_a_graph_is_retained_at_a_later_call(capture, dynamic, autocast):
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


@pytest.mark.parametrize("kept", [lambda t: t, lambda t: t.detach(), lambda t: t.view(-1)])
def test_what_hooks_hold_stays_as_it_is(kept):
    tensors = operands()
    held = []

    def pack(t):
        held.append((kept(t), t.clone()))
        return t.detach()

    with saved_tensors_hooks(pack, lambda t: t):
        out = tofuse.compile(wave)(*tensors)
    wanted = expected(wave, tensors, torch.ones_like(out))
    out.sum().backward()
    torch.testing.assert_close(gradients(tensors), list(wanted))
    assert held and all(torch.equal(t.flatten(), copy.flatten()) for t, copy in held)


def test_what_hooks_hand_back_from_numpy_stays_as_it_is():
    tensors, kept = operands(), []

    def pack(t):
        kept.append(t.detach().numpy().copy())
        return len(kept) - 1

    with saved_tensors_hooks(pack, lambda k: torch.from_numpy(kept[k])):
        out = tofuse.compile(wave)(*tensors)
    before = [array.copy() for array in kept]
    wanted = expected(wave, tensors, torch.ones_like(out))
    for retained in (True, False):
        out.sum().backward(retain_graph=retained)
        torch.testing.assert_close(gradients(tensors), list(wanted))
    assert kept and all((a == b).all() for a, b in zip(kept, before, strict=True))


def test_what_the_user_took_stays_as_it_is():
    tensors = operands()
    out = tofuse.compile(wave, capture="trace")(*tensors)
    taken = [t for t in out.grad_fn.saved_tensors if t is not None]
    before = [t.clone() for t in taken]
    out.sum().backward()
    assert all(torch.equal(t, b) for t, b in zip(taken, before, strict=True))


def test_results_that_are_saved_stay_as_they_are():
    def run(x, w):
        y = x @ w
        return y, F.gelu(y)

    tensors = operands()
    y, z = tofuse.compile(run)(*tensors)
    before = y.detach().clone()
    z.sum().backward()
    assert torch.equal(y, before)


@pytest.mark.parametrize("pooled", [False, True])
def test_who_else_holds_a_tensor(pooled, monkeypatch):
    monkeypatch.setattr(POOL, "limit", max(POOL.limit, 1 << 24))
    size = (SIZE, SIZE)
    nbytes = SIZE * SIZE * 4
    t = POOL.empty(nbytes, size, (SIZE, 1), torch.float32) if pooled else torch.empty(size)
    assert not shared(t)
    other = t[0]
    assert shared(t)
    del other
    storage = t.untyped_storage()
    assert shared(t)
    del storage
    several = [t]
    assert getrefcount(t) > LOCAL
    del several
    assert not shared(t)
    assert getrefcount(t) == LOCAL


def test_counts_are_the_same_under_dynamo():
    """It hooks into calls of Python functions, which then hold their arguments once more."""
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    t = torch.empty(SIZE, SIZE)
    assert getrefcount(t) == LOCAL and not shared(t)
