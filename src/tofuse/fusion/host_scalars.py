"""Which buffers of a GPU's kernel are numbers in the CPU's memory, to be passed by value."""

from __future__ import annotations

from dataclasses import replace

from tofuse.fusion.lower.axes import Misaligned
from tofuse.ir.graph import Value
from tofuse.ir.kernel import Kernel, Uniform


def with_hosts(kernel: Kernel, arguments: tuple[Value, ...], device: str) -> Kernel:
    """The kernel with such buffers marked; Misaligned where one has too many elements."""
    if device == "cpu":
        return kernel
    seeds = {s.seed for s in kernel.body if isinstance(s, Uniform)}
    buffers = []
    for b, v in zip(kernel.buffers, arguments, strict=True):
        if v.type.device != device:
            if v.type.device != "cpu" or b.role != "in":
                raise Misaligned("a tensor lies on another device")
            if v.type.numel != 1 and b.name not in seeds:
                raise Misaligned("a tensor lies on the CPU and is not a single number")
            b = replace(b, role="host")
        buffers.append(b)
    return replace(kernel, buffers=tuple(buffers))
