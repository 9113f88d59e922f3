"""A sum that a later loop would compute again is computed once, by a kernel of its own."""

import pytest
import torch
import torch.nn.functional as F

import tofuse


def norm(h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x = h.float()
    return w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)).to(h.dtype)


def linear(x, q, s, r, w):
    y = F.linear(x, q.to(x.dtype) * s) + r
    return y, norm(y, w)


def spread(x, q, s, r, w):
    y = (F.linear(x, q.to(x.dtype) * s) * r).float()
    return w * (y - y.mean(-1, keepdim=True)) / (y.amax(-1, keepdim=True) - y.amin())


def softmax(x, q, s, r, w):
    return (F.linear(x, q.to(x.dtype) * s) + r).softmax(-1) * w


@pytest.mark.parametrize("function", [linear, spread, softmax])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("depth", [512, 5632])
def test_a_weight_is_read_once(function, rows: int, depth: int):
    """Norms over the results of a product do not compute the product for each of their loops."""
    g = torch.Generator().manual_seed(0)
    n, dtype = 1024, torch.float32
    q = torch.randint(-127, 127, (n, depth), dtype=torch.int8, generator=g)
    x = torch.randn(rows, depth, generator=g).to(dtype)
    s, w = (torch.rand(shape, generator=g).to(dtype) for shape in ((n, 1), (n,)))
    r = torch.randn(rows, n, generator=g).to(dtype)
    report = tofuse.explain(function)(x, q, s, r, w)
    reads = 0
    for kernel in report.kernels:
        nest = kernel.loops[kernel.loops.index("\nnest ") :]
        reads += nest.count(" : i8\n")
    assert reads == 1, "\n".join([str(report), *(k.loops for k in report.kernels)])
    actual, expected = tofuse.compile(function)(x, q, s, r, w), function(x, q, s, r, w)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)
