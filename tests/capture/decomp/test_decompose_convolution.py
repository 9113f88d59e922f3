"""Convolutions by windows of one pixel are products of matrices in inference."""

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.eager import assert_as_eager

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
LAYOUTS = (torch.contiguous_format, torch.channels_last)


def calls(fn, *args):
    """Return the names of the operators that the graphs of a program call, before kernels."""
    graphs = tofuse.explain(fn)(*args).graphs
    ops = (op for g in graphs for op in g.captured.ops if op.kind == "opaque")
    return {str(op.attr("target")) for op in ops}


@pytest.mark.parametrize("stride", [1, 2, (1, 3)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(2, 8, 5, 7), (1, 8, 1, 1), (3, 8, 1, 4), (0, 8, 3, 3)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_pointwise_convolution(layout, shape, bias, stride):
    x = torch.randn(shape).to(memory_format=layout)
    w, b = torch.randn(6, 8, 1, 1), torch.randn(6) if bias else None
    assert_as_eager(lambda x, w: F.conv2d(x, w, b, stride).relu(), x, w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "convolution",
    [
        lambda x, w: F.conv2d(x, w, padding=1),
        lambda x, w: F.conv2d(x, w[:, :4], groups=2),
        lambda x, w: F.conv_transpose2d(x, w[:8]),
        lambda x, w: F.conv2d(x, w.expand(8, 8, 1, 2)),
    ],
)
def test_other_convolutions_stay_calls(convolution):
    x, w = torch.randn(2, 8, 5, 7).to(memory_format=torch.channels_last), torch.randn(8, 8, 1, 1)
    assert calls(convolution, x, w) == {"aten.convolution.default"}
    torch._dynamo.reset()
    assert_as_eager(convolution, x, w, rtol=1e-4, atol=1e-4)


def test_products_in_inference_only():
    x, w = torch.randn(2, 8, 9, 9).to(memory_format=torch.channels_last), torch.randn(8, 8, 1, 1)
    assert calls(F.conv2d, x, w) == {"aten.mm.default"}
    torch._dynamo.reset()
    assert "aten.convolution.default" in calls(F.conv2d, x, w.requires_grad_())
