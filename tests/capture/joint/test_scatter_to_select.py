"""Gradients of one element per row are computed in kernels."""

import pytest
import torch

import tofuse
from tests.support.eager import assert_as_eager

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def gather_per_row(x, index):
    return torch.log_softmax(x, -1).gather(-1, index.unsqueeze(-1)).squeeze(-1)


def gather_many_per_row(x, index):
    return x.sin().gather(0, index)


def gather_per_column(x, index):
    return x.exp().gather(0, index.unsqueeze(0))


def extremes(x):
    return x.max(1).values * 2, x.min(-1, keepdim=True).values


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(5, 33), (2, 3, 17), (1, 1), (0, 4)])
def test_one_index_per_row(shape, dtype):
    x = torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_()
    index = torch.randint(0, shape[-1], shape[:-1])
    tolerance = 2e-2 if dtype is torch.bfloat16 else 2e-5
    assert_as_eager(gather_per_row, x, index, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(5, 33), (2, 3, 17), (1, 1)])
def test_one_index_per_column_and_extremes(shape):
    x = torch.randn(shape, requires_grad=True)
    assert_as_eager(gather_per_column, x, torch.randint(0, shape[0], shape[1:]))
    torch._dynamo.reset()
    y = torch.randn(shape)
    y.flatten()[::4] = float("nan")
    assert_as_eager(extremes, y.requires_grad_())


def test_the_gradient_is_one_kernel():
    x, index = torch.randn(64, 40, requires_grad=True), torch.randint(0, 40, (64,))
    report = tofuse.explain(gather_per_row)(x, index)
    backward = next(g for g in report.graphs if g.phase == "backward")
    assert len(backward.regions) == 1 and not backward.library_calls


class UserScatter(torch.autograd.Function):
    """A user's backward that scatters with indices that no forward has validated."""

    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        return x[:, 0] * 2

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        zeros = grad.new_zeros(grad.shape[0], 3)
        return zeros.scatter(1, index.unsqueeze(1), grad.unsqueeze(1)), None


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_the_users_scatter_checks_its_indices():
    def run(x, index):
        return UserScatter.apply(x, index)

    x = torch.randn(4, 3, requires_grad=True)
    compiled = assert_as_eager(run, x, torch.tensor([0, 2, 1, 0]))
    out = compiled(x, torch.tensor([0, 9, 1, 0]))
    with pytest.raises((IndexError, RuntimeError)):
        out.sum().backward()


def test_several_indices_per_row_stay_a_scatter():
    x, index = torch.randn(6, 5, requires_grad=True), torch.randint(0, 6, (9, 5))
    report = tofuse.explain(gather_many_per_row)(x, index)
    backward = next(g for g in report.graphs if g.phase == "backward")
    assert any("scatter" in k.loops for k in backward.kernels)
    torch._dynamo.reset()
    assert_as_eager(gather_many_per_row, x, index)


def test_an_index_out_of_bounds_raises():
    x, index = torch.randn(4, 5, requires_grad=True), torch.tensor([0, 1, 9, 0])
    with pytest.raises((IndexError, RuntimeError)):
        tofuse.compile(gather_per_row)(x, index)
