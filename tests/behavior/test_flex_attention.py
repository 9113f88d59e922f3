"""`flex_attention` is one kernel: scores, masks of blocks, captured tensors, groups, statistics."""

import warnings

import pytest
import torch
from torch.nn.attention import flex_attention as flex

import tofuse

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

LENGTH = 160
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
DOCUMENTS = torch.arange(LENGTH) // 33
TABLE = torch.linspace(-2, 2, 2 * LENGTH)

SCORES = {
    "none": None,
    "slopes": lambda s, b, h, i, j: s - SLOPES[h] * (i - j).abs(),
    "table": lambda s, b, h, i, j: s + TABLE[i - j + LENGTH],
    "softcap": lambda s, b, h, i, j: 5 * torch.tanh(s / 5),
    "mask": lambda s, b, h, i, j: torch.where(i >= j, s, -float("inf")),
}
MASKS = {
    "none": None,
    "causal": lambda b, h, i, j: i >= j,
    "window": lambda b, h, i, j: (i >= j) & (i - j < 20),
    "documents": lambda b, h, i, j: DOCUMENTS[i] == DOCUMENTS[j],
    "no keys": lambda b, h, i, j: (i >= j) & (i > 7),
    "heads": lambda b, h, i, j: (i >= j) | (h > b),
}


def compiled(fn):
    return tofuse.compile(fn, dynamic=False, hand_back=False, strict=True)


def make_program(score, mask, **options):
    block_mask = None
    allowed = MASKS[mask]
    if allowed is not None:
        block_mask = flex.create_block_mask(allowed, 2, 4, LENGTH, LENGTH, device="cpu")

    def program(q, k, v):
        return flex.flex_attention(
            q, k, v, score_mod=SCORES[score], block_mask=block_mask, **options
        )

    return program


def eager(program, *tensors):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return program(*tensors)


def tensors(dtype, heads=4, length=LENGTH):
    torch.manual_seed(0)
    q = torch.randn(2, 4, length, 16)
    k, v = (torch.randn(2, heads, LENGTH, n) for n in (16, 24))
    return [t.to(dtype) for t in (q, k, v)]


@pytest.mark.broad(6)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_values(score, mask, dtype):
    program, inputs = make_program(score, mask), tensors(dtype)
    ours, expected = compiled(program)(*inputs), eager(program, *inputs)
    assert ours.dtype == expected.dtype
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("mask", ["none", "causal", "documents"])
def test_one_kernel(mask):
    report = tofuse.explain(make_program("softcap", mask))(*tensors(torch.float32))
    assert not report.library_calls and len(report.kernels) == 1
    notes = " ".join(report.graphs[0].notes)
    assert ("only the blocks that masks leave" in notes) == (mask != "none")
    results = 4 * sum(t.numel() for t in tensors(torch.float32)) * 2
    assert report.bytes_after < results


def test_groups_scale_and_statistics():
    program = make_program("slopes", "causal", scale=0.3, enable_gqa=True, return_lse=True)
    inputs = tensors(torch.float32, heads=2)
    for ours, expected in zip(compiled(program)(*inputs), eager(program, *inputs), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


def test_one_query():
    program, inputs = make_program("table", "none"), tensors(torch.float32, length=1)
    ours, expected = compiled(program)(*inputs), eager(program, *inputs)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


def test_gradients_are_pytorchs_error():
    program = make_program("slopes", "causal")
    inputs = [t.requires_grad_() for t in tensors(torch.float32)]
    with pytest.raises(NotImplementedError, match="backward on CPU"):
        compiled(program)(*inputs)
