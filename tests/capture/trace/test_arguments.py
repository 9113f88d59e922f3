"""capture="trace": guards on arguments and modules; errors for what tracing cannot express."""

import gc
import threading
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

import tofuse
from tests.support.eager import assert_as_eager
from tofuse.errors import CaptureError

TRACE = {"capture": "trace"}


@dataclass
class Pair:
    a: torch.Tensor
    b: int = 3


@dataclass(frozen=True, slots=True)
class FrozenSlots:
    a: torch.Tensor
    rest: tuple


class Scale:
    def __init__(self, factor, other=None):
        self.factor, self.other = factor, other


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


# -- guards ---------------------------------------------------------------------------------------


def test_tied_weights_are_guarded():
    model, x = Tied(), torch.randn(3, 4)
    compiled = tofuse.compile(model, capture="trace")
    torch.testing.assert_close(compiled(x), model(x))
    model.second.weight = nn.Parameter(torch.randn(4, 4))
    torch.testing.assert_close(compiled(x), model(x))
    model.first.weight = nn.Parameter(torch.randn(4, 4))
    torch.testing.assert_close(compiled(x), model(x))
    model.second.weight = model.first.weight
    compiled(x).sum().backward()
    mine, model.first.weight.grad = model.first.weight.grad, None
    model(x).sum().backward()
    torch.testing.assert_close(mine, model.first.weight.grad)


def test_hooks_are_guarded():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(3, 4)
    compiled = tofuse.compile(model, capture="trace")
    plain = compiled(x)
    hook = model[0].register_forward_hook(lambda module, args, out: out * 2)
    torch.testing.assert_close(compiled(x), plain * 2)
    hook.remove()
    model.register_forward_pre_hook(lambda module, args: (args[0] * 0,))
    torch.testing.assert_close(compiled(x), model(x))


def test_objects_are_guarded_by_their_contents():
    x, scale, held = torch.ones(3), Scale(2.0), Pair(torch.ones(3))
    scaled = tofuse.compile(lambda o, x: x * o.factor, capture="trace")
    doubled = tofuse.compile(lambda h: h.a * h.b, capture="trace")
    assert torch.equal(scaled(scale, x), x * 2)
    scale.factor = 5.0
    assert torch.equal(scaled(scale, x), x * 5)
    assert torch.equal(doubled(held), x * 3)
    held.a, held.b = torch.full((3,), 2.0), 4
    assert torch.equal(doubled(held), x * 8)
    for k in range(6):  # a new object may get the id of a freed one
        assert torch.equal(doubled(Pair(torch.full((3,), float(k)))), x * 3 * k)
        assert torch.equal(scaled(Scale(k), x), x * k)
        gc.collect()


def test_dataclasses_as_arguments_and_results():
    traced = 0

    def step(held, parts):
        nonlocal traced
        traced += 1
        return replace(held, a=held.a * parts[0].a), parts[0].a + held.b

    compiled = tofuse.compile(step, capture="trace")
    counts = []
    for _ in range(4):
        x, y = (torch.randn(3, requires_grad=True) for _ in range(2))
        held, total = compiled(Pair(x, 5), [FrozenSlots(y, ())])
        (held.a * total).sum().backward()
        torch.testing.assert_close(x.grad, y.detach() * (y.detach() + 5))
        counts.append((held.b, traced))
    assert counts == [(5, counts[0][1])] * 4


def test_sets_and_cyclic_objects():
    x, scale = torch.ones(3), Scale(2.0)
    counted = tofuse.compile(lambda s, x: x * len(s), capture="trace")
    assert [float(counted(s, x)[0]) for s in ({1}, {1, 2}, {4, 5, 6}, set())] == [1, 2, 3, 0]
    scale.other = Scale(3.0, scale)
    compiled = tofuse.compile(lambda o, x: x * o.other.factor, capture="trace")
    assert torch.equal(compiled(scale, x), x * 3)
    scale.other.factor = 4.0
    assert torch.equal(compiled(scale, x), x * 4)


def test_sizes_as_arguments_and_results():
    compiled = tofuse.compile(lambda x, size: (x * size.numel(), x.shape), capture="trace")
    for _ in range(2):
        got, size = compiled(torch.ones(2, 3), torch.Size([4, 5]))
        assert torch.equal(got, torch.full((2, 3), 20.0)) and isinstance(size, torch.Size)


@pytest.mark.parametrize("fn", [lambda x: x.detach(), lambda x: (x.data, x.detach() * 2)])
def test_detached_argument_is_a_new_tensor(fn):
    assert_as_eager(fn, torch.randn(3, requires_grad=True), calls=3, options=TRACE)


# -- errors ---------------------------------------------------------------------------------------


def clip(model, x):
    return nn.utils.clip_grad_norm_(model.parameters(), 0.5)


def read(model, x):
    return model.weight.grad * 2


def accumulate(model, x):
    loss = model(x).sum()
    loss.backward()
    return loss.detach()


@pytest.mark.parametrize("fn", [clip, read, accumulate])
def test_access_to_outside_gradients_is_an_error(fn):
    model, x = nn.Linear(4, 4), torch.randn(3, 4)
    model(x).sum().backward()
    grad = model.weight.grad
    assert grad is not None
    before = grad.clone()
    with pytest.raises(CaptureError, match=r"\.grad of a tensor from outside"):
        tofuse.compile(lambda x: fn(model, x), capture="trace")(x)
    assert model.weight.grad is grad and torch.equal(grad, before)


def test_gradients_inside_the_program_are_allowed():
    def fn(x):
        w = x.detach().requires_grad_()
        w.sin().sum().backward()
        return w.grad * 2

    assert_as_eager(fn, torch.randn(5), options=TRACE)


def test_tensors_inside_a_returned_object_are_an_error():
    with pytest.raises(CaptureError, match="returns tensors inside a Scale"):
        tofuse.compile(lambda x: [Scale(x.sin())], capture="trace")(torch.ones(3))


def test_setting_a_field_of_an_argument_is_an_error():
    def advance(held):
        held.a = held.a + 1

    with pytest.raises(CaptureError, match="sets a field of an argument, Pair"):
        tofuse.compile(advance, capture="trace")(Pair(torch.ones(3)))


def test_write_into_an_expanded_view_is_eagers_error():
    with pytest.raises(RuntimeError, match="single memory location"):
        tofuse.compile(lambda x: x.expand(3, 4).add_(1), capture="trace")(torch.ones(4))


# -- with other features of torch -----------------------------------------------------------------


def test_lstm_with_trained_weights_only():
    lstm, x = nn.LSTM(4, 5, 2, batch_first=True), torch.randn(3, 6, 4)
    grads = []
    for call in (tofuse.compile(lstm, capture="trace"), lstm):
        lstm.zero_grad()
        out, (_, cell) = call(x)
        (out.sin().sum() + cell.sum()).backward()
        grads.append([out, *[p.grad for p in lstm.parameters()]])
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("fresh_dynamo")
def test_inside_torch_compile():
    inner = tofuse.compile(lambda x: x.sin() * 2, capture="trace")
    outer = torch.compile(lambda x: inner(x).cos(), backend="aot_eager")
    for k in range(3):
        x = torch.full((4,), float(k), requires_grad=True)
        outer(x).sum().backward()
        expected = torch.full((4,), float(k), requires_grad=True)
        (expected.sin() * 2).cos().sum().backward()
        torch.testing.assert_close(x.grad, expected.grad)
        inner(x.detach())


@pytest.mark.usefixtures("fresh_dynamo")
def test_threads_compile_and_run_at_once():
    errors: list[Exception] = []
    running = tofuse.compile(lambda x: x.sin() * 2)
    running(torch.ones(3))
    stop = threading.Event()

    def run():
        try:
            while not stop.is_set():
                running(torch.ones(3))
        except Exception as error:
            errors.append(error)

    def trace(k):
        compiled = tofuse.compile(lambda x: F.gelu(x) * k, capture="trace")
        try:
            torch.testing.assert_close(compiled(torch.ones(3)), F.gelu(torch.ones(3)) * k)
        except Exception as error:
            errors.append(error)

    runner = threading.Thread(target=run)
    tracers = [threading.Thread(target=trace, args=(k,)) for k in range(6)]
    for thread in (runner, *tracers):
        thread.start()
    for thread in tracers:
        thread.join()
    stop.set()
    runner.join()
    assert not errors
    assert torch.equal(tofuse.compile(lambda x: x + 1)(torch.ones(3)), torch.full((3,), 2.0))


def checkpointed(x, w, reentrant):
    def body(x, w):
        return torch.tanh(x @ w) * x

    return torch.utils.checkpoint.checkpoint(body, x, w, use_reentrant=reentrant).sum(-1)


def test_gradient_of_a_reentrant_checkpoint_is_an_error():
    compiled = tofuse.compile(checkpointed, capture="trace")
    x, w = torch.ones(4, 4, requires_grad=True), torch.ones(4, 4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, w, True), checkpointed(x, w, True))
    with pytest.raises(CaptureError, match="use_reentrant=False"):
        compiled(x, w, True)


def test_checkpoint_inside():
    def f(x, w):
        return checkpointed(x, w, False)

    compiled = tofuse.compile(f, capture="trace")
    for _ in range(2):
        grads = []
        for g in (compiled, f):
            x, w = (torch.ones(4, 4).triu().requires_grad_() for _ in range(2))
            g(x, w).sum().backward()
            grads.append((x.grad, w.grad))
        torch.testing.assert_close(*grads)


def test_writes_into_unfold_are_an_error_and_reads_are_not():
    def write(x):
        x.unfold(0, 2, 3)[1:].T[0] = 5
        return x + 1

    with pytest.raises(CaptureError, match=r"test_arguments\.py:\d+.*windows"):
        tofuse.compile(write, **TRACE)(torch.randn(8))
    assert_as_eager(lambda x: (x * 2).unfold(0, 2, 1).sum(-1), torch.randn(8), options=TRACE)


def test_lists_tuples_and_dicts_are_distinguished():
    def first(batch, *more):
        x = batch["a"] if isinstance(batch, dict) else batch[0]
        return x * (2 if isinstance(batch, list) else 3) + len(more)

    compiled, x, y = tofuse.compile(first, capture="trace"), torch.randn(3), torch.randn(3)
    batches = [[x, y], (x, y), {"a": x, "b": y}, {"b": y, "a": x}, [x, [y]], [x, (y,)], [x]]
    for _ in range(2):
        for batch in batches:
            torch.testing.assert_close(compiled(batch), first(batch), rtol=0, atol=0)
            torch.testing.assert_close(compiled(batch, []), first(batch, []), rtol=0, atol=0)
    other = {"b": x, "a": y}
    torch.testing.assert_close(compiled(other), y * 3, rtol=0, atol=0)
