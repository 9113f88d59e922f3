"""Programs whose reports are looked at, small but with every kind of region and edge."""

import functools

import torch
import torch.nn.functional as F

import tofuse
from tofuse.report.report_text import ReportText


def block(x, w, b, g):
    """A matrix product between pointwise ops and a norm; its backward reads across products."""
    h = F.gelu(x @ w + b)
    y = F.layer_norm(h, (h.shape[-1],), g)
    return (y + x).softmax(-1)


def block_arguments() -> tuple[torch.Tensor, ...]:
    x, w = torch.randn(16, 24, requires_grad=True), torch.randn(24, 24, requires_grad=True)
    return x, w, torch.randn(24), torch.randn(24)


@functools.cache
def measured_block() -> ReportText:
    """Its report with times, made once for all tests that look at one."""
    return tofuse.explain(block, measure=True)(*block_arguments())
