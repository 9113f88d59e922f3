"""Kernels with short or strided rows are split where the loop structure changes; others are not."""

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.eager import assert_as_eager

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
RULE = "short or strided rows in one kernel"


def image(*shape: int, channels_last: bool, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = torch.randn(shape, dtype=dtype)
    return x.contiguous(memory_format=torch.channels_last) if channels_last else x


def norm_and_silu(x, weight, bias, groups):
    return F.silu(F.group_norm(x, groups, weight, bias))


def norm_and_silu_to_channels_last(x, weight, bias, groups):
    y = norm_and_silu(x, weight, bias, groups)
    return y.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "program, channels_last, kernels",
    [
        (norm_and_silu_to_channels_last, False, 3),  # statistics, channel factors, image
        (norm_and_silu, True, 5),  # sums, means, squares, channel factors, image
    ],
)
def test_channel_factors_have_a_kernel_of_their_own(program, channels_last, kernels):
    x, weight, bias = (
        image(2, 320, 32, 32, channels_last=channels_last),
        torch.randn(320),
        torch.randn(320),
    )
    report = tofuse.explain(program)(x, weight, bias, 32)
    assert any(v.rule.startswith(RULE) and not v.fused for v in report.verdicts)
    assert len(report.kernels) <= kernels
    assert "i1:320" in report.kernels[-1].loops  # along all channels, not within a group


def test_rows_of_full_vectors_stay_one_kernel():
    x, weight, bias = image(2, 320, 32, 32, channels_last=False), torch.randn(320), torch.randn(320)
    report = tofuse.explain(norm_and_silu)(x, weight, bias, 32)
    assert len(report.kernels) == 1
    assert not any(v.rule.startswith(RULE) for v in report.verdicts)


def test_fuse_hint_keeps_one_kernel():
    def hinted(x, weight, bias):
        with tofuse.fuse():
            return norm_and_silu_to_channels_last(x, weight, bias, 4)

    x, weight, bias = image(2, 128, 64, 64, channels_last=False), torch.randn(128), torch.randn(128)
    assert len(tofuse.explain(hinted)(x, weight, bias).kernels) == 1


@pytest.mark.parametrize(
    "program, channels_last", [(norm_and_silu_to_channels_last, False), (norm_and_silu, True)]
)
@pytest.mark.parametrize(
    "dtype, shape, groups",
    [
        (torch.float32, (2, 40, 31, 33), 4),
        (torch.float32, (3, 64, 16, 16), 8),
        (torch.float64, (1, 48, 32, 32), 1),
        (torch.bfloat16, (2, 21, 40, 40), 7),
    ],
)
def test_results_and_gradients_are_near_float64(program, channels_last, dtype, shape, groups):
    assert_near_float64(lambda x, w, b: program(x, w, b, groups), shape, channels_last, dtype)


def assert_near_float64(program, shape, channels_last, dtype, compared_strides=4):
    """Result and gradients are as near to float64 as eager's.

    The first `compared_strides` of them also have eager's strides.
    """

    def results(fn, kind):
        torch.manual_seed(0)
        x = image(*shape, channels_last=channels_last)
        inputs = [x, torch.randn(shape[1]), torch.randn(shape[1])]
        inputs = [v.to(dtype).to(kind).requires_grad_() for v in inputs]
        y = fn(*inputs)
        torch.manual_seed(1)
        return [y, *torch.autograd.grad(y, inputs, torch.randn(shape).to(dtype).to(kind))]

    ours, exact = results(tofuse.compile(program), dtype), results(program, torch.float64)
    eager = results(program, dtype)
    for n, (a, b, e) in enumerate(zip(ours, eager, exact, strict=True)):
        where = [
            k
            for k, extent in enumerate(a.shape)
            if a.numel() and extent > 1 and n < compared_strides
        ]
        assert [a.stride(k) for k in where] == [b.stride(k) for k in where]
        if a.numel():
            bound = 2 * (b - e).abs().amax() + 4e-6 * e.abs().amax()
            assert (a - e).abs().amax() <= bound


def test_a_kernel_is_not_split_if_the_parts_are_not_faster():
    """Its parts would store and load whole images."""
    x = image(8, 64, 28, 28, channels_last=True).requires_grad_()
    norm = torch.nn.BatchNorm2d(64)
    report = tofuse.explain(lambda x: F.relu(norm(x)))(x)
    forward = next(g for g in report.graphs if g.phase == "forward")
    assert len(forward.kernels) == 2  # the other one counts batches
    assert not any(v.rule.startswith(RULE) for v in report.verdicts)


def norm_over_channels(x, weight, bias):
    """A norm over the channels of each position, with a row-major result."""
    normed = F.layer_norm(x.permute(0, 2, 3, 1), weight.shape, weight, bias)
    return normed.permute(0, 3, 1, 2).contiguous()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "program", [norm_over_channels, lambda x, w, b: F.mish(F.group_norm(x, 11, w, b))]
)
@pytest.mark.parametrize("shape", [(2, 22, 29, 23), (1, 33, 1, 1), (0, 22, 5, 3)])
def test_other_norms_of_odd_images(program, shape, dtype):
    assert_near_float64(program, shape, True, dtype, compared_strides=1)


def test_group_norm_of_channels_last_volumes():
    x = torch.randn(2, 24, 5, 9, 7).contiguous(memory_format=torch.channels_last_3d)
    inputs = [v.requires_grad_() for v in (x, torch.randn(24), torch.randn(24))]
    assert_as_eager(lambda x, w, b: norm_and_silu(x, w, b, 3), *inputs, rtol=1e-4, atol=1e-4)
