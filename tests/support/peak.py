"""The most bytes that a call and its backward hold at once, as PyTorch's allocator counts them."""

import torch

from benchmarks.allocations import allocations
from tests.support.eager import tensors


def peak_bytes(fn, *args):
    """Above what was held before; the third call is measured, when all is compiled and warm."""
    for _ in range(2):
        _step(fn, args)
    return allocations(lambda: _step(fn, args)).peak


def _step(fn, args):
    outputs = [t for t in tensors(fn(*args)) if t.requires_grad]
    wanted = [t for t in args if t.requires_grad]
    if outputs:
        torch.autograd.grad(outputs, wanted, [torch.ones_like(t) for t in outputs])
