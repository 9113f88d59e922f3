"""Parts of models of several families, in Triton's interpreter; see test_gpu_driver.py."""

import pytest
import torch
import torch.nn.functional as F

from tests.backends.cuda.runtime.products_on_fake_gpu import contract_all
from tests.support.fake_gpu import FakeGpu, compile_for

__all__ = ["compile_for", "contract_all"]  # fixtures

pytestmark = [
    pytest.mark.usefixtures("fresh_dynamo"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def lstm_cell(x, h, c, w, u, b):
    i, f, g, o = (x @ w.t() + h @ u.t() + b).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c) + c


def experts(x, gate, w, v):
    share = F.softmax(x @ gate, -1)
    hidden = torch.einsum("td,edh->teh", x, w).relu()
    return torch.einsum("teh,ehd,te->td", hidden, v, share)


def cosine(x, w):
    return (F.normalize(x, dim=-1) @ F.normalize(w, dim=-1).t()) * 10


def gram(x):
    y = x.tanh()
    return y @ y.t()


def low_rank(x, a, b, w):
    return x @ w + (x @ a @ b) * 2


def linear_attention(q, k, v):
    q, k = F.elu(q) + 1, F.elu(k) + 1
    return (q @ (k.transpose(-1, -2) @ v)) / (q * k.sum(-2, keepdim=True)).sum(-1, keepdim=True)


def heads_last(x, w):
    return torch.einsum("btnd,nde->bent", x.permute(0, 2, 1, 3), w).sigmoid()


def batched_columns(x, w):
    return (x.transpose(1, 2) @ w.transpose(0, 1)[:, :, ::2]).exp().sum(-1)


def mixer(x, w, v):
    return x + (F.gelu(x.transpose(1, 2) @ w) @ v).transpose(1, 2)


FAMILIES = [
    (lstm_cell, [(7, 19), (7, 23), (7, 23), (92, 19), (92, 23), (92,)]),
    (lstm_cell, [(1, 1), (1, 2), (1, 2), (8, 1), (8, 2), (8,)]),
    (experts, [(13, 17), (17, 3), (3, 17, 29), (3, 29, 17)]),
    (cosine, [(31, 37), (41, 37)]),
    (cosine, [(32, 32), (32, 32)]),
    (cosine, [(0, 37), (41, 37)]),
    (gram, [(29, 41)]),
    (gram, [(1, 41)]),
    (low_rank, [(11, 37), (37, 4), (4, 43), (37, 43)]),
    (linear_attention, [(2, 3, 19, 8), (2, 3, 19, 8), (2, 3, 19, 5)]),
    (heads_last, [(2, 5, 7, 13), (5, 13, 11)]),
    (batched_columns, [(3, 17, 19), (17, 3, 46)]),
    (mixer, [(2, 17, 31), (17, 47), (47, 17)]),
    (mixer, [(1, 3, 1), (3, 2), (2, 3)]),
]
SLOW = (low_rank, linear_attention)  # if contracted, in the interpreter
CONTRACTED = [case for case in FAMILIES if case[0] not in SLOW]


def with_gaps(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a copy of another dtype whose elements are two apart in memory."""
    strides = [2 * step for step in x.contiguous().stride()]
    return torch.empty_strided(x.shape, strides, dtype=dtype).copy_(x)


def check(compile_for, program, shapes, dtype: torch.dtype) -> None:
    """Compare results and gradients with float64; eager's error says how near they must be."""
    generator = torch.Generator().manual_seed(5)
    made = [torch.randn(s, generator=generator).to(dtype) / 2 for s in shapes]
    compiled, found = compile_for(FakeGpu(), program)[0], []
    for run, wide in ((program, torch.float64), (program, dtype), (compiled, dtype)):
        inputs = [
            (x.to(wide, copy=True) if k % 2 else with_gaps(x, wide)).requires_grad_()
            for k, x in enumerate(made)
        ]
        result = run(*inputs)
        result.backward(result.detach().cos())
        found.append([t.detach().double() for t in (result, *(x.grad for x in inputs))])
    for exact, eager, ours in zip(*found, strict=True):
        if exact.numel():
            rounding = torch.finfo(dtype).eps * max(1.0, float(exact.abs().max()))
            bound = 3 * float((eager - exact).abs().max()) + 4 * rounding
            assert (ours - exact).abs().max() <= bound


@pytest.mark.parametrize(("program", "shapes"), FAMILIES, ids=lambda x: getattr(x, "__name__", ""))
def test_library_products(compile_for, program, shapes):
    check(compile_for, program, shapes, torch.float32)


@pytest.mark.usefixtures("contract_all")
@pytest.mark.parametrize(
    ("program", "shapes"), CONTRACTED, ids=lambda x: getattr(x, "__name__", "")
)
def test_products_in_kernels(compile_for, program, shapes):
    check(compile_for, program, shapes, torch.float16)
