"""The most bytes that a call and its backward hold at once, as PyTorch's allocator counts them."""

import torch
from torch.profiler import ProfilerActivity, profile

from tests.support.eager import tensors


def peak_bytes(fn, *args):
    """Above what was held before; the third call is measured, when all is compiled and warm."""
    for _ in range(2):
        _step(fn, args)
    # without acc_events the first profile of a process warns
    cpu = [ProfilerActivity.CPU]
    with profile(activities=cpu, profile_memory=True, acc_events=True) as measured:
        _step(fn, args)
    events = [e for e in measured.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def _step(fn, args):
    outputs = [t for t in tensors(fn(*args)) if t.requires_grad]
    wanted = [t for t in args if t.requires_grad]
    if outputs:
        torch.autograd.grad(outputs, wanted, [torch.ones_like(t) for t in outputs])
