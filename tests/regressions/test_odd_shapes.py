"""Concats, slices, indexing and padding at odd, unit and empty sizes: results and gradients."""

import pytest
import torch
import torch.nn.functional as F

import tofuse

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def uneven_cat(x, w):
    return F.layer_norm(torch.cat((x, x * w, x[..., :1]), -1), (2 * x.shape[-1] + 1,))


def seven_operands(x, w):
    return torch.cat([(x * k).tanh() * w for k in range(7)], -1).softmax(-1)


def index_rows(x, w):
    first = torch.zeros(x.shape[0], dtype=torch.long)
    return (x[torch.arange(x.shape[0]), first] * w).exp()


def slice_of_merged(x, w):
    return ((x * w).permute(2, 0, 1).reshape(x.shape[2], -1)[:, 1:] * 2).sigmoid()


def padded(x, w):
    return F.pad(x * w, (2, 1), value=0.1) * 1.5


def error_functions(x, w):
    return torch.erf(x * w) + torch.erfc(x) * F.gelu(x)


PROGRAMS = (uneven_cat, seven_operands, index_rows, slice_of_merged, padded, error_functions)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(3, 7, 13), (1, 1, 1), (0, 5, 3), (31, 2, 17)], ids=str)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_error_against_float64_is_close_to_eager(program, shape, dtype):
    inputs = [torch.randn(shape[::-1]).permute(2, 1, 0), torch.randn(shape[-1])]
    inputs = [x.to(dtype) for x in inputs]

    def outcome(fn, kind):
        x, w = (t.detach().to(kind).requires_grad_() for t in inputs)
        y = fn(x, w)
        torch.manual_seed(1)
        return [y, *torch.autograd.grad(y, (x, w), torch.randn(y.shape).to(dtype).to(kind))]

    ours, eager = outcome(tofuse.compile(program), dtype), outcome(program, dtype)
    for a, b, exact in zip(ours, eager, outcome(program, torch.float64), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if a.numel():
            magnitude = exact.abs().amax() + 1
            bound = 2 * (b - exact).abs().amax() + 32 * torch.finfo(dtype).eps * magnitude
            assert (a - exact).abs().amax() <= bound
