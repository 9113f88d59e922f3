"""PyTorch checks the tensors that autograd Functions of a program save, as eager does."""

import pytest
import torch

import tofuse

pytestmark = [
    pytest.mark.usefixtures("fresh_dynamo"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated"),  # Dynamo does
]


class Scale(torch.autograd.Function):
    """It writes in forward and backward, so that PyTorch runs it."""

    @staticmethod
    def forward(ctx, value, calls, factor):
        calls.add_(1)
        ctx.calls = calls
        ctx.save_for_backward(factor)
        return value * factor

    @staticmethod
    def backward(ctx, grad):
        ctx.calls.add_(1)
        return grad * ctx.saved_tensors[0], None, None


def test_a_changed_saved_tensor_is_an_error():
    compiled = tofuse.compile(lambda v, c, f: Scale.apply(v, c, f))
    value, calls, factor = torch.ones(3, requires_grad=True), torch.zeros(()), torch.ones(3)
    out = compiled(value, calls, factor).sum()
    out.backward(retain_graph=True)
    factor.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()
    out = compiled(value, calls, factor).sum()
    out.backward()
    assert calls.item() == 4
    torch.testing.assert_close(value.grad, torch.ones(3))


def test_parameters_and_buffers_are_those_of_the_module():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            return Scale.apply(self.linear(x), self.calls, torch.ones(3))

    layer = Layer()
    tofuse.compile(layer)(torch.ones(2, 3)).sum().backward()
    torch.testing.assert_close(layer.get_buffer("calls"), torch.tensor(2.0))
    torch.testing.assert_close(layer.linear.bias.grad, torch.full((3,), 2.0))
