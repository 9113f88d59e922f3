"""Accesses with a short axis between the neighbours of a long one, as the colours of pixels."""

from __future__ import annotations

from tofuse.ir.kernel import Affine, Kernel

MOST = 8  # elements side by side; each costs as many shuffles of a vector as it has neighbours


def interleaved(kernel: Kernel, index: Affine, along: str) -> str | None:
    """The axis that has all its elements between neighbours along another: c < 3 in x[3*i + c]."""
    step = index.coefficient(along)
    if not isinstance(step, int) or not 2 <= step <= MOST:
        return None
    for axis in index.axes:
        if axis != along and index.coefficient(axis) == 1 and kernel.extent(axis) == step:
            return axis
    return None
