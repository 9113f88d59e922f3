"""Half precision: operands that eager rounds before it computes."""

import pytest
import torch
import torch.nn.functional as F

import tofuse

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

ZERO_DIM_OPS = {
    "sums": lambda x, s: (
        x + s,
        x - s,
        s - x,
        torch.add(x, s, alpha=0.7),
        torch.add(s, x, alpha=2),
    ),
    "differences": lambda x, s: (torch.sub(x, s, alpha=0.7), torch.rsub(x, s, alpha=0.7)),
    "products": lambda x, s: (x * s, s * x, x / s, s / x, torch.addcmul(x, x, s)),
    "quotients": lambda x, s: (x // s, s // x, x % s, s % x, torch.fmod(x, s), torch.fmod(s, x)),
    "functions": lambda x, s: (x**s, torch.xlogy(x, s), torch.xlogy(s, x), torch.atan2(s, x)),
    "logarithms": lambda x, s: (torch.special.xlog1py(x, s), torch.logaddexp(x, s)),
    "selections": lambda x, s: (torch.where(x > s, x, s), torch.maximum(x, s), x.clamp(max=s)),
    "multiply and add": lambda x, s: (torch.addcmul(s, x, x), torch.addcdiv(x, x, s)),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_zero_dim_operand_is_rounded_to_half_precision_first(dtype):
    x = torch.randn(1024, generator=torch.Generator().manual_seed(0)).to(dtype)
    s = torch.tensor(0.3)

    def fn(x, s):
        return [r for op in ZERO_DIM_OPS.values() for r in op(x, s)]

    def numbers(x):
        return 0.3 // x, x // 0.3, torch.xlogy(x, 0.3), torch.full_like(x, 0.3) + x, x + 0.3

    for f, args in ((fn, (x, s)), (numbers, (x,))):
        got, expected = tofuse.compile(f, precision="eager")(*args), f(*args)
        for k, (a, b) in enumerate(zip(got, expected, strict=True)):
            assert a.dtype == b.dtype
            same = (a == b) | (a.isnan() & b.isnan())
            assert same.all(), k


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scale_of_dropout_is_rounded(dtype):
    x = torch.randn(64, 64).to(dtype)
    scaled = x * torch.ones_like(x).div_(1 - 0.33)
    y = tofuse.compile(lambda x: F.dropout(x, 0.33))(x)
    assert torch.equal(y, torch.where(y == 0, 0.0, scaled))
