"""Kernels of short or strided rows are cut where loops change, and nothing else is."""

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.eager import assert_as_eager

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
WORDS = "short or strided rows in one kernel"


def image(*shape: int, last: bool, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = torch.randn(shape, dtype=dtype)
    return x.contiguous(memory_format=torch.channels_last) if last else x


def activated(x, weight, bias, groups):
    return F.silu(F.group_norm(x, groups, weight, bias))


def turned(x, weight, bias, groups):
    return activated(x, weight, bias, groups).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "program, last, kernels",
    [
        (turned, False, 3),  # statistics, numbers for each channel, and the image
        (activated, True, 5),  # sums, means, squares, numbers for each channel, and the image
    ],
)
def test_what_each_channel_needs_is_computed_apart_from_the_image(program, last, kernels):
    x, weight, bias = image(2, 320, 32, 32, last=last), torch.randn(320), torch.randn(320)
    report = tofuse.explain(program)(x, weight, bias, 32)
    assert any(v.rule.startswith(WORDS) and not v.fused for v in report.verdicts)
    assert len(report.kernels) <= kernels
    assert "i1:320" in report.kernels[-1].loops  # along all channels, not group by group


def test_rows_of_full_vectors_stay_one_kernel():
    x, weight, bias = image(2, 320, 32, 32, last=False), torch.randn(320), torch.randn(320)
    report = tofuse.explain(activated)(x, weight, bias, 32)
    assert len(report.kernels) == 1
    assert not any(v.rule.startswith(WORDS) for v in report.verdicts)


def test_a_kernel_asked_for_stays_whole():
    def asked(x, weight, bias):
        with tofuse.fuse():
            return turned(x, weight, bias, 4)

    x, weight, bias = image(2, 128, 64, 64, last=False), torch.randn(128), torch.randn(128)
    assert len(tofuse.explain(asked)(x, weight, bias).kernels) == 1


@pytest.mark.parametrize("program, last", [(turned, False), (activated, True)])
@pytest.mark.parametrize(
    "dtype, shape, groups",
    [
        (torch.float32, (2, 40, 31, 33), 4),
        (torch.float32, (3, 64, 16, 16), 8),
        (torch.float64, (1, 48, 32, 32), 1),
        (torch.bfloat16, (2, 21, 40, 40), 7),
    ],
)
def test_results_and_gradients_are_those_of_float64(program, last, dtype, shape, groups):
    near_float64(lambda x, w, b: program(x, w, b, groups), shape, last, dtype)


def near_float64(program, shape, last, dtype, laid=4):
    """As near as eager's; the first `laid` of the result and its gradients lie as eager's too."""

    def results(fn, kind):
        torch.manual_seed(0)
        given = [image(*shape, last=last), torch.randn(shape[1]), torch.randn(shape[1])]
        given = [v.to(dtype).to(kind).requires_grad_() for v in given]
        y = fn(*given)
        torch.manual_seed(1)
        return [y, *torch.autograd.grad(y, given, torch.randn(shape).to(dtype).to(kind))]

    ours, exact = results(tofuse.compile(program), dtype), results(program, torch.float64)
    eager = results(program, dtype)
    for n, (a, b, e) in enumerate(zip(ours, eager, exact, strict=True)):
        where = [k for k, extent in enumerate(a.shape) if a.numel() and extent > 1 and n < laid]
        assert [a.stride(k) for k in where] == [b.stride(k) for k in where]
        if a.numel():
            bound = 2 * (b - e).abs().amax() + 4e-6 * e.abs().amax()
            assert (a - e).abs().amax() <= bound


def test_a_kernel_stays_whole_whose_parts_gain_nothing():
    """Step by step, its parts would pass whole images on in memory."""
    x = image(8, 64, 28, 28, last=True).requires_grad_()
    norm = torch.nn.BatchNorm2d(64)
    report = tofuse.explain(lambda x: F.relu(norm(x)))(x)
    forward = next(g for g in report.graphs if g.phase == "forward")
    assert len(forward.kernels) == 2  # the count of batches is the other
    assert not any(v.rule.startswith(WORDS) for v in report.verdicts)


def turned_rows(x, weight, bias):
    """Norms of all channels of a place, laid out row by row again."""
    normed = F.layer_norm(x.permute(0, 2, 3, 1), weight.shape, weight, bias)
    return normed.permute(0, 3, 1, 2).contiguous()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "program", [turned_rows, lambda x, w, b: F.mish(F.group_norm(x, 11, w, b))]
)
@pytest.mark.parametrize("shape", [(2, 22, 29, 23), (1, 33, 1, 1), (0, 22, 5, 3)])
def test_other_norms_of_odd_images(program, shape, dtype):
    near_float64(program, shape, True, dtype, laid=1)


def test_groups_of_channels_last_volumes():
    x = torch.randn(2, 24, 5, 9, 7).contiguous(memory_format=torch.channels_last_3d)
    given = [v.requires_grad_() for v in (x, torch.randn(24), torch.randn(24))]
    assert_as_eager(lambda x, w, b: activated(x, w, b, 3), *given, rtol=1e-4, atol=1e-4)
