"""Maxima of values that kernels compute in half precision: gradients as exact as eager's.

The backward computes such values again. It must subtract, or compare, the maximum of these.
"""

import pytest
import torch

import tofuse

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def softmax(x, w):
    return torch.softmax(x * 1.37, -1) * w


def softmax_beside_its_operand(x, w):
    y = x * 1.37
    return torch.softmax(y, -1) * w, y


def by_hand(x, w):
    y = x * 1.37
    e = torch.exp(y - y.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True) * w


def detached(x, w):
    y = x * 1.37
    return torch.exp(y - y.amax(-1, keepdim=True).detach()) * w


def with_index(x, w):
    y = x * 1.37
    e = torch.exp(y - y.max(-1, keepdim=True)[0])
    return e / e.sum(-1, keepdim=True) * w


def log_sum(x, w):
    y = x * w
    m = y.detach().amax(-1, keepdim=True)
    return torch.exp(y - m).sum(-1).log() + m[..., 0]


def log_softmax(x, w):
    return torch.log_softmax(x * 1.37, -1) * w


def over_maximum(x, w):
    y = x * 1.37
    return y / y.amax(-1, keepdim=True) * w


def less_minimum(x, w):
    y = x * 1.37
    return (y - y.min(-1, keepdim=True)[0]) * w


def maximum_and_index(x, w):
    values, indices = (x * 1.37).max(-1)
    return values * w[:, 0], indices.to(x.dtype) * w[:, 1]


PROGRAMS = [
    *(softmax, softmax_beside_its_operand, by_hand, detached, with_index),
    *(log_sum, log_softmax, over_maximum, less_minimum, maximum_and_index),
]


def gradients(program, tensors):
    results = program(*tensors)
    results = results if isinstance(results, tuple) else (results,)
    grads = [torch.linspace(-1, 1, r.numel()).reshape(r.shape).to(r) for r in results]
    return [*(r.detach() for r in results), *torch.autograd.grad(results, tensors, grads)]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("scale", [1, 60])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients(program, scale, dtype):
    torch.manual_seed(0)
    tensors = [
        t.to(dtype).requires_grad_() for t in (scale * torch.randn(64, 96), torch.randn(64, 96))
    ]
    exact = gradients(program, [t.detach().double().requires_grad_() for t in tensors])
    eager = gradients(program, tensors)
    ours = gradients(tofuse.compile(program, dynamic=False, hand_back=False), tensors)
    margin = 4 * torch.finfo(dtype).eps
    for e, o, a in zip(exact, ours, eager, strict=True):
        assert (o - e).norm() <= 1.3 * (a - e).norm() + margin * e.norm()
