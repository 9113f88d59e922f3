"""Reflection and replication padding become fused concats; ATen runs the other modes."""

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.eager import assert_as_eager

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
CASES = [
    ((2, 3, 7), (1, 2)),
    ((2, 7), (6, 0)),
    ((2, 3, 5, 7), (1, 2, 3, 4)),
    ((3, 5, 7), (0, 1, 2, 0)),
    ((1, 2, 4, 5, 6), (1, 2, 0, 3, 3, 1)),
    ((2, 3, 7), (0, 0)),
]


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
@pytest.mark.parametrize("shape, amounts", CASES)
def test_matches_eager(shape, amounts, mode):
    for dtype in (torch.float32, torch.float64, torch.complex64):
        x = torch.randn(shape, dtype=dtype, requires_grad=True)
        channels_last = (
            x.detach().contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x
        )
        for inputs in (x, channels_last):
            assert_as_eager(
                lambda x: F.pad(x + x, amounts, mode=mode) * 3, inputs, options={"capture": "trace"}
            )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64])
def test_other_types(dtype):
    x = (torch.randn(2, 3, 8, 9) * 9).to(dtype)
    assert_as_eager(lambda x: F.pad(x * 2, (2, 1, 1, 3), mode="reflect"), x, rtol=0, atol=0)


def test_padding_wider_than_the_tensor():
    x = torch.randn(1, 2, 3, requires_grad=True)
    assert_as_eager(lambda x: F.pad(x * 2, (7, 5), mode="replicate"), x)


def test_too_much_reflection_raises_as_in_eager():
    with pytest.raises(RuntimeError, match=r"[Pp]adding size should be less"):
        tofuse.compile(lambda x: F.pad(x, (3, 0), mode="reflect"), capture="trace")(
            torch.randn(1, 2, 3)
        )


def test_dynamic_lengths():
    compiled = tofuse.compile(lambda x: F.pad(x.relu(), (2, 3), mode="reflect"), dynamic=True)
    for n in (5, 9, 16):
        x = torch.randn(2, 3, n, requires_grad=True)
        expected = F.pad(x.relu(), (2, 3), mode="reflect")
        got = compiled(x)
        torch.testing.assert_close(got, expected)
        mine, theirs = (torch.autograd.grad(y.square().sum(), x)[0] for y in (got, expected))
        torch.testing.assert_close(mine, theirs)


def test_padding_is_fused_with_its_neighbors():
    report = tofuse.explain(lambda x: F.pad(x.relu(), (3, 3), mode="reflect").sin())(
        torch.randn(4, 8, 100)
    )
    assert len(report.kernels) == 1 and not report.library_calls


def test_transposed_inputs():
    x = torch.randn(2, 7, 13, 5).transpose(1, 3).requires_grad_()
    assert_as_eager(lambda x: F.pad(x * 2, (2, 1, 0, 3), mode="replicate"), x)
    y = torch.randn(3, 2, 17, 13, requires_grad=True)
    assert_as_eager(
        lambda y: F.pad(y.tanh().transpose(0, 1), (5, 4, 3, 2), mode="reflect").sum(-1), y
    )
