"""The peak memory of a call and its backward, as PyTorch's allocator counts it."""

import torch

from benchmarks.allocations import allocations
from tests.support.eager import tensors


def peak_bytes(fn, *args):
    """Return the peak bytes above those held before the call, measured on the third call."""
    for _ in range(2):
        _step(fn, args)
    return allocations(lambda: _step(fn, args)).peak


def _step(fn, args):
    outputs = [t for t in tensors(fn(*args)) if t.requires_grad]
    inputs = [t for t in args if t.requires_grad]
    if outputs:
        torch.autograd.grad(outputs, inputs, [torch.ones_like(t) for t in outputs])
