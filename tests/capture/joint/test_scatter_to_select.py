"""Gradients that go to one place of each row take part in kernels."""

import pytest
import torch

import tofuse
from tests.support.eager import assert_as_eager

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def picked(x, places):
    return torch.log_softmax(x, -1).gather(-1, places.unsqueeze(-1)).squeeze(-1)


def several(x, places):
    return x.sin().gather(0, places)


def outer(x, places):
    return x.exp().gather(0, places.unsqueeze(0))


def largest(x):
    return x.max(1).values * 2, x.min(-1, keepdim=True).values


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(5, 33), (2, 3, 17), (1, 1), (0, 4)])
def test_picks_of_rows(shape, dtype):
    x = torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_()
    places = torch.randint(0, shape[-1], shape[:-1])
    tolerance = 2e-2 if dtype is torch.bfloat16 else 2e-5
    assert_as_eager(picked, x, places, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(5, 33), (2, 3, 17), (1, 1)])
def test_picks_of_columns_and_extremes(shape):
    x = torch.randn(shape, requires_grad=True)
    assert_as_eager(outer, x, torch.randint(0, shape[0], shape[1:]))
    torch._dynamo.reset()
    y = torch.randn(shape)
    y.flatten()[::4] = float("nan")
    assert_as_eager(largest, y.requires_grad_())


def test_the_gradient_is_one_kernel():
    x, places = torch.randn(64, 40, requires_grad=True), torch.randint(0, 40, (64,))
    report = tofuse.explain(picked)(x, places)
    backward = next(g for g in report.graphs if g.phase == "backward")
    assert len(backward.regions) == 1 and not backward.library_calls


class Scatter(torch.autograd.Function):
    """A backward of the user's that scatters where no forward has looked."""

    @staticmethod
    def forward(ctx, x, places):
        ctx.save_for_backward(places)
        return x[:, 0] * 2

    @staticmethod
    def backward(ctx, grad):
        (places,) = ctx.saved_tensors
        zeros = grad.new_zeros(grad.shape[0], 3)
        return zeros.scatter(1, places.unsqueeze(1), grad.unsqueeze(1)), None


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_scatter_of_the_users_is_checked():
    def run(x, places):
        return Scatter.apply(x, places)

    x = torch.randn(4, 3, requires_grad=True)
    compiled = assert_as_eager(run, x, torch.tensor([0, 2, 1, 0]))
    out = compiled(x, torch.tensor([0, 9, 1, 0]))
    with pytest.raises((IndexError, RuntimeError)):
        out.sum().backward()


def test_several_places_of_a_row_stay_a_scatter():
    x, places = torch.randn(6, 5, requires_grad=True), torch.randint(0, 6, (9, 5))
    report = tofuse.explain(several)(x, places)
    backward = next(g for g in report.graphs if g.phase == "backward")
    assert backward.library_calls
    torch._dynamo.reset()
    assert_as_eager(several, x, places)


def test_a_place_that_is_none_is_an_error():
    x, places = torch.randn(4, 5, requires_grad=True), torch.tensor([0, 1, 9, 0])
    with pytest.raises((IndexError, RuntimeError)):
        tofuse.compile(picked)(x, places)
