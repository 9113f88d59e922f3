"""Tensors without memory: zeros that autograd makes, fake tensors, freed storages."""

import pytest
import torch
from torch._subclasses import FakeTensor, FakeTensorMode

import tofuse
from tests.support.eager import assert_same, assert_same_tensor, outcome
from tofuse import FusionDefinition
from tofuse.errors import TofuseError

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

W = torch.randn(5, 5)


def zeros(*shape):
    """Return a tensor of zeros without memory, as the gradients of `sgn` and `round` are."""
    x = torch.ones(shape, requires_grad=True)
    (z,) = torch.autograd.grad(torch.sgn(x).sum(), x)
    assert z.data_ptr() == 0
    return z


def pointwise(x, y):
    return x.sin() + y * 2 + 3


def library_call(x, y):
    return (x @ W).exp() + y


def slices(x, y):
    return x[2:].cos() + y[:-2], (x + y)[:, 1::2] - 1


def views(x, y):
    return x.t().reshape(-1)[3:] + 1, (x + y).view(-1)


def reduction(x, y):
    return (x + y).softmax(-1), x.sum(0)


def concat(x, y):
    return torch.cat((x, y * 2, x + 1), 1)


PROGRAMS = (pointwise, library_call, slices, views, reduction, concat)


@pytest.mark.parametrize("options", [{}, {"dynamic": True}, {"capture": "trace"}], ids=str)
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
def test_zeros_without_memory_are_arguments(fn, options):
    compiled = tofuse.compile(fn, **options)
    y = torch.randn(5, 5)
    for x in (torch.randn(5, 5), zeros(5, 5), torch.randn(5, 5)):
        for arguments in ((x, y), (y, x), (x, x)):
            assert_same(outcome(compiled, arguments, {}), outcome(fn, arguments, {}))


@pytest.mark.parametrize("source", [torch.sgn, torch.round, torch.floor], ids=lambda f: f.__name__)
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
def test_zeros_without_memory_are_gradients(fn, source):
    def loss(run, x, y):
        results = run(x, y)
        return sum(source(r).sum() for r in (results if isinstance(results, tuple) else [results]))

    x, y = torch.randn(5, 5, requires_grad=True), torch.randn(5, 5, requires_grad=True)
    compiled = tofuse.compile(fn)
    for run in (compiled, compiled):
        got = torch.autograd.grad(loss(run, x, y), (x, y), allow_unused=True)
        expected = torch.autograd.grad(loss(fn, x, y), (x, y), allow_unused=True)
        for a, b in zip(got, expected, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                assert_same_tensor(a, b, "gradients", 1e-6, 1e-6)


def test_a_write_into_zeros_without_memory_is_eagers_error():
    def write(x):
        x.add_(1)
        return x * 2

    for run in (write, tofuse.compile(write), tofuse.compile(write, capture="trace")):
        with pytest.raises(RuntimeError, match="ZeroTensors are immutable"):
            run(zeros(4))


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")
def test_an_optimizer_step_takes_zeros_without_memory():
    p = torch.ones(7, requires_grad=True)
    torch.sgn(p).sum().backward()
    assert p.grad is not None
    assert p.grad.data_ptr() == 0
    optimizer = torch.optim.SGD([p], lr=0.1, momentum=0.9)
    for _ in range(3):
        tofuse.compile(optimizer.step)()
    assert torch.equal(p.detach(), torch.ones(7))


def test_a_definition_takes_zeros_without_memory():
    with FusionDefinition() as fd:
        x = fd.from_pytorch(torch.ones(6))
        fd.add_output(fd.ops.add(x, fd.define_scalar(2.0)))
    for given in (torch.ones(6), zeros(6)):
        assert torch.equal(fd.execute([given])[0], given + 2)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
def test_fake_tensors_give_fake_tensors(fn, grad):
    compiled = tofuse.compile(fn)
    x, y = torch.randn(2, 5, 5)
    for first in (False, True):  # fake tensors before and after others
        if first:
            assert_same(outcome(compiled, (x, y), {}), outcome(fn, (x, y), {}))
        with FakeTensorMode(allow_non_fake_inputs=True):
            fakes = [torch.randn(5, 5, requires_grad=grad) for _ in range(2)]
            results, expected = compiled(*fakes), fn(*fakes)
            many = isinstance(results, tuple)
            pairs = zip(results, expected, strict=True) if many else [(results, expected)]
            for a, b in pairs:
                assert type(a) is type(b)
                assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)
                if grad:
                    assert isinstance(torch.autograd.grad(a.sum(), fakes[0])[0], FakeTensor)
    assert_same(outcome(compiled, (x, y), {}), outcome(fn, (x, y), {}))


def test_a_freed_storage_is_an_error():
    compiled = tofuse.compile(pointwise)
    x, y = torch.randn(2, 5, 5)
    compiled(x, y)
    x = x.clone()
    x.untyped_storage().resize_(0)
    with pytest.raises(TofuseError, match=r"shape \[5, 5\] has no memory"):
        compiled(x, y)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)])
def test_empty_tensors_need_no_memory(shape):
    def fn(x):
        return x.sin() + 1, x.sum(0)

    compiled = tofuse.compile(fn)
    x = torch.empty(shape)
    assert_same(outcome(compiled, (x,), {}), outcome(fn, (x,), {}))
