"""Programs of more operands than a kernel may have buffers, transposed, with gradients."""

import pytest
import torch

import tofuse

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def program(*operands):
    total = operands[0]
    for k, x in enumerate(operands[1:]):
        total = total + x.tan() * (k % 3) if k % 2 else total - x.cos()
    return total, total.sum(0), torch.cat(operands[:3], -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3, 0), (1, 1), (13, 7), (17, 31)])
def test_results_and_gradients(shape, dtype):
    operands = [torch.rand(shape, dtype=dtype).t().requires_grad_() for _ in range(90)]
    expected, found = program(*operands), tofuse.compile(program, hand_back=False)(*operands)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    gradients = (torch.autograd.grad(results[0].sum(), operands) for results in (found, expected))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
