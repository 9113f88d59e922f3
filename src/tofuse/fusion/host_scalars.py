"""Mark buffers of a GPU kernel that are scalars in the CPU's memory: they are passed by value."""

from __future__ import annotations

from dataclasses import replace

from tofuse.fusion.lower.axes import LoweringError
from tofuse.ir.graph import Value
from tofuse.ir.kernel import Kernel, Uniform
from tofuse.ir.region import Rule


def mark_host_scalars(kernel: Kernel, arguments: tuple[Value, ...], device: str) -> Kernel:
    """Return the kernel with host scalars and seeds marked.

    Raise LoweringError for any other tensor that is on another device.
    """
    if device == "cpu":
        return kernel
    seeds = {s.seed for s in kernel.body if isinstance(s, Uniform)}
    buffers = []
    for b, v in zip(kernel.buffers, arguments, strict=True):
        if v.type.device != device:
            if v.type.device != "cpu" or b.role != "in":
                raise LoweringError(Rule.TENSOR_ON_OTHER_DEVICE())
            if v.type.numel != 1 and b.name not in seeds:
                raise LoweringError(Rule.TENSOR_ON_CPU())
            b = replace(b, role="host")
        buffers.append(b)
    return replace(kernel, buffers=tuple(buffers))
