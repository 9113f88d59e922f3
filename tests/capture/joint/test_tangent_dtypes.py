"""Tangents have the dtype of the compiled program's results, whatever torch predicts."""

import pytest
import torch
import torch.nn.functional as F

import tofuse

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LOSSES = (F.soft_margin_loss, F.smooth_l1_loss, F.l1_loss)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("target", FLOATS, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gradients_of_losses_of_two_dtypes(dtype, target, loss):
    """Torch predicts the wider dtype for soft_margin_loss, which returns its argument's."""
    torch.manual_seed(0)
    x, y = torch.randn(200).to(dtype), torch.rand(200).to(target)

    def program(x, y):
        return loss(x, y) * 2

    outcomes = []
    for run in (program, tofuse.compile(program)):
        argument = x.clone().requires_grad_()
        result = run(argument, y)
        result.backward()
        assert argument.grad is not None
        outcomes.append((result, argument.grad))
    tolerance = 2 * max(torch.finfo(d).eps for d in (dtype, target))
    (expected, gradient), (result, ours) = outcomes
    assert (result.dtype, ours.dtype) == (expected.dtype, gradient.dtype)
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(ours, gradient, rtol=tolerance, atol=tolerance / 100)
