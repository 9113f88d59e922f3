"""Products by weights whose columns are contiguous: quantized ones, and those of chosen experts."""

import pytest
import torch
import torch.nn.functional as F

import tofuse

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 3e-4, torch.bfloat16: 4e-2, torch.float16: 4e-3}
SIZES = [(0, 64, 40), (1, 97, 131), (3, 257, 1000), (13, 128, 17), (37, 1009, 101), (64, 1, 64)]


def assert_like_eager(program, *args):
    """Static and symbolic sizes; the margin is relative to the largest result."""
    expected = program(*args)
    margin = TOLERANCE[expected.dtype] * float(expected.abs().max() if expected.numel() else 0)
    for dynamic in (False, True):
        torch._dynamo.reset()
        found = tofuse.compile(program, dynamic=dynamic, hand_back=False)(*args)
        torch.testing.assert_close(found, expected, rtol=0, atol=margin)
        assert found.stride() == expected.stride()


@pytest.mark.broad(4)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "depth", "columns"), SIZES)
def test_quantized(rows, depth, columns, dtype):
    def layer(x, w, s):
        return (x @ (w.to(x.dtype) * s.to(x.dtype))).relu() + 1

    w = torch.randint(-128, 128, (depth, columns), dtype=torch.int8)
    s = torch.rand(columns) * 0.02
    assert_like_eager(layer, torch.randn(rows, depth).to(dtype), w, s)
    assert_like_eager(layer, torch.randn(depth, rows).to(dtype).t(), w, s)


@pytest.mark.broad(4)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("experts", "tokens", "depth", "columns"),
    [(3, 5, 33, 47), (4, 0, 16, 16), (1, 17, 64, 40), (6, 2, 129, 257)],
)
def test_experts(experts, tokens, depth, columns, dtype):
    def first(x, w, chosen, shares):
        return F.gelu(torch.einsum("tk,tkn->tn", x, w[chosen[:, 0]]))

    def both(x, w, chosen, shares):
        return (torch.einsum("tk,tekn->ten", x, w[chosen]) * shares[..., None]).sum(1)

    x, w = torch.randn(tokens, depth).to(dtype), torch.randn(experts, depth, columns).to(dtype)
    chosen = torch.randint(0, experts, (tokens, 2))
    for program in (first, both):
        assert_like_eager(program, x, w, chosen, torch.rand(tokens, 2).to(dtype))


@pytest.mark.parametrize("rows", [1, 2, 7, 40])
def test_codes_along_the_depth(rows):
    """Eight codes in a number along the depth, as in GPTQ; groups of a prime number of them."""
    groups, per_group, columns = 3, 8 * 11, 83

    def layer(x, packed, zeros, scales, shifts):
        codes = ((packed[:, None, :] >> shifts[:, None]) & 15).reshape(groups, per_group, columns)
        return x @ ((codes - zeros[:, None]) * scales[:, None]).reshape(-1, columns)

    packed = torch.randint(-(2**31), 2**31 - 1, (groups * per_group // 8, columns)).int()
    zeros, scales = torch.randint(0, 16, (groups, columns)).int(), torch.rand(groups, columns)
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    assert_like_eager(layer, torch.randn(rows, groups * per_group), packed, zeros, scales, shifts)
