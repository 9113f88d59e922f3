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


def freed(*shape):
    """Return a tensor whose storage was freed, which begins in the middle of the storage."""
    t = torch.randn(3, *shape)[1]
    t.untyped_storage().resize_(0)
    return t


def fake(*shape):
    """Return a fake tensor that begins in the middle of its storage."""
    with FakeTensorMode():
        return torch.randn(3, *shape)[1]


@torch.library.custom_op("tofuse_tests::without_memory", mutates_args=())
def without_memory(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = freed(*x.shape)
    return result


without_memory.register_fake(torch.empty_like)


def write(x, y):
    x.add_(y)
    return x * 2


def definition(x, y):
    with FusionDefinition() as fd:
        a, b = fd.from_pytorch(torch.ones(5, 5)), fd.from_pytorch(torch.ones(5, 5))
        fd.add_output(fd.ops.add(a, b))
    return fd.execute([x, y])[0]


ENTRIES = {
    "forward": tofuse.compile(pointwise),
    "symbolic sizes": tofuse.compile(pointwise, dynamic=True),
    "trace": tofuse.compile(pointwise, capture="trace"),
    "torch.compile": torch.compile(pointwise, backend="tofuse"),
    "a view": tofuse.compile(views),
    "a write": tofuse.compile(write),
    "verify": tofuse.compile(pointwise, verify=True),
    "a definition": definition,
}


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor:UserWarning")
@pytest.mark.parametrize("entry", ENTRIES)
def test_a_tensor_without_memory_is_an_error(entry):
    """Also if it does not begin at address 0. Under `capture="trace"`, eager runs fake tensors."""
    run = ENTRIES[entry]
    for make in (freed, freed) if entry == "trace" else (freed, fake):
        with pytest.raises(TofuseError, match=r"Tensor of shape \[5, 5\] has no memory"):
            run(make(5, 5), torch.ones(5, 5))
        run(torch.ones(5, 5), torch.ones(5, 5))


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor:UserWarning")
@pytest.mark.parametrize("make", [freed, fake])
def test_a_gradient_or_saved_tensor_without_memory_is_an_error(make):
    compiled = tofuse.compile(lambda x, y: (x * y).sin())
    x, y = torch.randn(5, 5, requires_grad=True), torch.randn(3, 5, 5)[1]
    for lost in ("gradient", "saved tensor"):
        result = compiled(x, y)
        if lost == "saved tensor":
            y.untyped_storage().resize_(0)
        with pytest.raises(TofuseError, match=r"shape \[5, 5\] has no memory"):
            torch.autograd.grad(result, x, make(5, 5) if lost == "gradient" else torch.ones(5, 5))


def test_a_result_or_constant_without_memory_is_an_error():
    x, constant = torch.randn(5, 5), torch.randn(3, 5, 5)[1]
    closure = tofuse.compile(lambda x: x.exp() * constant)
    closure(x)
    constant.untyped_storage().resize_(0)
    operator = tofuse.compile(lambda x: without_memory(x.sin()).cos())
    options = {"executors": ("empty", "llvm", "aten")}
    tofuse.register_executor("empty", ops=("aten.sort",), run=lambda *args: (freed(5, 5), None))
    try:
        executor = tofuse.compile(lambda x: x.sort()[0].cos(), **options)
        for run in (closure, operator, executor):
            with pytest.raises(TofuseError, match=r"shape \[5, 5\] has no memory"):
                run(x)
    finally:
        tofuse.unregister_executor("empty")


def test_zeros_without_memory_may_begin_anywhere():
    compiled = tofuse.compile(pointwise)
    x, y = zeros(9, 5)[4:], torch.randn(5, 5)
    assert_same(outcome(compiled, (x, y), {}), outcome(pointwise, (x, y), {}))


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)])
def test_empty_tensors_need_no_memory(shape):
    def fn(x):
        return x.sin() + 1, x.sum(0)

    compiled = tofuse.compile(fn)
    x = torch.empty(shape)
    assert_same(outcome(compiled, (x,), {}), outcome(fn, (x,), {}))


EMPTY = {
    "vector": lambda: torch.ones(1).expand(0),
    "rows": lambda: torch.ones(5)[2:3].expand(0, 1),
    "columns": lambda: torch.ones(4, 1).expand(4, 0),
    "contiguous": lambda: torch.ones(4, 0),
    "no storage": lambda: torch.empty(0).as_strided((0, 3), (0, 0)),
}


@pytest.mark.parametrize("name", EMPTY)
@pytest.mark.parametrize("options", [{}, {"capture": "trace"}, {"verify": True}], ids=str)
def test_an_empty_tensor_that_repeats_an_element(name, options):
    """PyTorch gives it no address; what repeats is read and written outside of the empty loop."""

    def program(x):
        y = x.sin()
        return (y.abs() + 1) * x, y.sum(), x.expand(4, *x.shape) * 2, x.to(torch.bfloat16)

    for x in (EMPTY[name](), EMPTY[name]().requires_grad_()):
        torch.testing.assert_close(tofuse.compile(program, **options)(x), program(x))


def test_sizes_that_become_zero():
    program = lambda x: (x.double(), x.sum(0), x * 2 + 1)  # noqa: E731
    compiled = tofuse.compile(program, dynamic=True, specialize=False)
    for rows in (4, 3, 0, 2):
        for x in (torch.ones(1, 5).expand(rows, 5), torch.ones(5, 1).expand(5, rows)):
            torch.testing.assert_close(compiled(x), program(x))
