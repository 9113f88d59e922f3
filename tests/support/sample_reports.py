"""A small program with every kind of region and edge, for tests of reports."""

import functools

import torch
import torch.nn.functional as F

import tofuse
from tofuse.report.report_text import ReportText


def block(x, w, b, g):
    """Compute a matrix product between pointwise ops and a norm."""
    h = F.gelu(x @ w + b)
    y = F.layer_norm(h, (h.shape[-1],), g)
    return (y + x).softmax(-1)


def block_arguments() -> tuple[torch.Tensor, ...]:
    x, w = torch.randn(20, 24, requires_grad=True), torch.randn(24, 24, requires_grad=True)
    return x, w, torch.randn(24), torch.randn(24)


@functools.cache
def measured_block() -> ReportText:
    """Return the report of the program with times, made once for all tests."""
    return tofuse.explain(block, measure=True)(*block_arguments())
