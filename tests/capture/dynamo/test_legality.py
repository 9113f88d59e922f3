"""Programs that PyTorch runs: those of views alone, and writes that a compiled program loses."""

import operator

import pytest
import torch
from torch import Tensor

import tofuse
from tofuse.driver import compile_program

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
VIEWS = {
    "view": lambda x: x.view(4, 4),
    "transposed": lambda x: x.t()[1:],
    "several": lambda x: (x.split(1), x.detach().real, x.unsqueeze(0).expand(3, -1, -1)),
    "argument": lambda x: (x, x.reshape(-1), x.contiguous().float()),
    "size": lambda x: (x.view(-1, x.shape[0]), x.shape[1]),
}
OTHERS = {
    "view and sum": lambda x: (x.view(4, 4), x + 1),
    "view of copy": lambda x: x.t().contiguous().view(-1),
    "write through view": lambda x: x.view(-1).mul_(2),
    "view and constant": lambda x: (x.t(), torch.zeros(2)),
    "unused result": lambda x: (x.sin(), x.view(-1))[1],
}


@pytest.fixture
def decisions(monkeypatch):
    found = []
    returns_only_views = compile_program.returns_only_views

    def recorded(gm):
        found.append(returns_only_views(gm))
        return found[-1]

    monkeypatch.setattr(compile_program, "returns_only_views", recorded)
    return found


def tensors(results: object) -> list[Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(results) if isinstance(t, Tensor)]


def gradient(results: list[Tensor], x: Tensor) -> Tensor:
    squares = [t.square().sum() for t in results if t.requires_grad]
    return torch.autograd.grad(torch.stack(squares).sum(), x)[0]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", [*VIEWS, *OTHERS])
def test_views_match_eager(name, grad, dynamic, decisions):
    f = (VIEWS | OTHERS)[name]
    grad = grad and name != "write through view"  # autograd forbids writes into leaves
    compiled = tofuse.compile(f, strict=True, dynamic=dynamic)
    for _ in range(2):
        x = torch.randn(2, 8, requires_grad=grad)
        twin = x.detach().clone().requires_grad_(grad)
        got, wanted = tensors(compiled(x)), tensors(f(twin))
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride() and a.requires_grad == b.requires_grad
            shared = b.data_ptr() - twin.data_ptr() == a.data_ptr() - x.data_ptr()
            assert (a._base is x) == (b._base is twin) and (shared or name in OTHERS)
        if any(t.requires_grad for t in got):
            torch.testing.assert_close(gradient(got, x), gradient(wanted, twin))
    assert all(decisions) == (name in VIEWS) if decisions else name in OTHERS


def test_writes_into_returned_views_reach_the_argument():
    compiled = tofuse.compile(lambda x: x.t()[1:])
    x = torch.zeros(2, 3)
    compiled(x).add_(1)
    assert x.tolist() == [[0, 1, 1], [0, 1, 1]]
    with torch.no_grad():
        compiled(x)[0, 0] = 5
    assert x[0, 1] == 5


SMALLER_TARGETS = {
    "pow": lambda x, y: x.pow_(y),
    "operator": lambda x, y: operator.ipow(x, y),
    "remainder": lambda x, y: x.remainder_(y),
    "copysign": lambda x, y: x.copysign_(y),
    "bound": lambda x, y: x.clamp_max_(y),
    "rounded quotient": lambda x, y: x.div_(y, rounding_mode="floor"),
    "condition": lambda x, y: x.masked_fill_(y > 0, 1.0),
}


@pytest.mark.parametrize("name", SMALLER_TARGETS)
def test_a_write_in_place_may_not_broadcast_the_tensor(name):
    x, y = torch.rand(5, 1), torch.rand(5)

    def write(x, y):
        z = x + 1
        SMALLER_TARGETS[name](z, y)
        return z

    for run in (write, tofuse.compile(write)):
        with pytest.raises(RuntimeError, match=r"shape|size"):
            run(x, y)


def test_operands_that_fit_are_compiled():
    def write(x, y):
        z = x.pow(2).pow_(y[:, :1]).remainder_(y[0]).clamp_max_(y.sum())
        return z.copysign_(y)

    x, y = torch.rand(5, 3), torch.rand(5, 3)
    report = tofuse.explain(write)(x, y)
    assert report.kernels and not report.library_calls


def test_a_rank_is_written_into_out():
    x, out = torch.eye(4), torch.tensor(-1)
    assert tofuse.compile(lambda x, out: torch.linalg.matrix_rank(x, out=out))(x, out) is out
    assert out == 4


def test_gradients_through_a_view_of_an_expanded_argument():
    def program(x):
        return x.view(x.shape[0], 1, *x.shape[1:]), x[1:], x.transpose(0, 1)

    compiled = tofuse.compile(program, dynamic=True)
    for rows in (3, 5):
        x = torch.randn(rows, 1, 2).expand(rows, 8, 2).detach().requires_grad_()
        for ours, eagers in zip(compiled(x), program(x), strict=True):
            tangent = torch.randn(eagers.shape)
            got, expected = (torch.autograd.grad(y, x, tangent)[0] for y in (ours, eagers))
            torch.testing.assert_close(got, expected)


def test_an_argument_and_its_view_with_symbolic_sizes():
    """Torch makes two symbols for each size; a guard on the second one has no source."""

    def program(x, y):
        return torch.roll(x, 1, 0), y + 1

    compiled = tofuse.compile(program)
    for size in (2, 3, 5):
        x = torch.randn(size, 3, size)
        torch.testing.assert_close(compiled(x, x.mT), program(x, x.mT))


SCATTERS = {
    "select": lambda x: torch.select_scatter(x, x.select(0, 0) * 2, 0, 1),
    "slice": lambda x: torch.slice_scatter(x, x[:1] * 2, 0, 1, 2),
    "diagonal": lambda x: torch.diagonal_scatter(x, x.diagonal(0, 0, 1) * 2, 0, 0, 1),
}


@pytest.mark.parametrize("name", SCATTERS)
def test_scatters_into_windows_that_overlap(name):
    """Eager copies the operand with its strides, so that one write is seen in two windows."""

    def program(x):
        return SCATTERS[name](x.unfold(0, 2, 1) + 0) * 2, SCATTERS[name](x.unfold(0, 2, 1))

    x = torch.randn(4, 2)
    for got, expected in zip(tofuse.compile(program)(x), program(x), strict=True):
        assert got.stride() == expected.stride() and torch.equal(got, expected)
    with pytest.raises(tofuse.CaptureError, match="overlaps itself"):
        tofuse.compile(program, capture="trace")(x)
