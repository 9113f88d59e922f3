"""Check every access of a kernel against the size of its buffer, at each iteration point."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import pytest

from tofuse.analysis.alias import MemRef
from tofuse.fusion.lowering_memo import LoweringMemo, SharedKernel
from tofuse.ir.affine import AffineExpr
from tofuse.ir.dims import Dim, size_hint
from tofuse.ir.graph import Value
from tofuse.ir.kernel import InRange, Kernel, Load, Store
from tofuse.ir.region import Region

MAX_POINTS = 1 << 20  # of one statement; larger kernels are not checked


def out_of_bounds_accesses(kernel: Kernel, sizes: Mapping[str, int]) -> list[str]:
    """Return the unguarded loads and stores outside buffers of `sizes` elements."""
    axis_numbers = {a.name: k for k, a in enumerate(kernel.axes)}
    rank = len(kernel.axes)

    def position(index: AffineExpr) -> np.ndarray:
        total = np.full((1,) * rank, size_hint(index.const))
        for name, factor in index.terms:
            number = axis_numbers[name]
            extent = size_hint(kernel.axes[number].extent)
            shape = [extent if k == number else 1 for k in range(rank)]
            total = total + np.arange(extent).reshape(shape) * size_hint(factor)
        return total

    masks: dict[str | None, np.ndarray] = {None: np.ones((1,) * rank, dtype=bool)}
    found = []
    for stmt in kernel.body:
        if isinstance(stmt, InRange):
            at = position(stmt.index)
            in_range = (at >= size_hint(stmt.lo)) & (at < size_hint(stmt.hi))
            masks[stmt.name] = in_range & masks[stmt.guard]
        elif isinstance(stmt, Load | Store) and stmt.buffer in sizes:
            guard = masks[stmt.guard] if isinstance(stmt, Load) else masks[None]
            at, guard = np.broadcast_arrays(position(stmt.index), guard)
            at = at[guard]
            if at.size and (at.min() < 0 or at.max() >= sizes[stmt.buffer]):
                found.append(f"{stmt} of {sizes[stmt.buffer]} elements")
    return found


def element_span(shape: Sequence[Dim], strides: Sequence[Dim]) -> int:
    """Return the number of elements from the first to the last of a tensor."""
    pairs = [(size_hint(n), size_hint(s)) for n, s in zip(shape, strides, strict=True)]
    if any(n == 0 for n, _ in pairs):
        return 0
    return 1 + sum((n - 1) * s for n, s in pairs)


def points(kernel: Kernel) -> int:
    return math.prod(size_hint(a.extent) for a in kernel.axes)


@contextmanager
def check_all_accesses(patch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Collect the out-of-bounds accesses of all kernels of static sizes that are lowered."""
    found: list[str] = []
    original = LoweringMemo.lower

    def checked(
        memo: LoweringMemo, region: Region, storage: dict[Value, MemRef], rounded: frozenset[str]
    ) -> SharedKernel:
        lowered = original(memo, region, storage, rounded)
        kernel = lowered.kernel
        if not kernel.symbols and points(kernel) <= MAX_POINTS:
            sizes = {}
            for buffer, v in zip(kernel.buffers, lowered.arguments, strict=True):
                memref = storage.get(v)
                if memref is not None and memref.root is v:
                    sizes[buffer.name] = element_span(v.shape, memref.strides)
            accesses = out_of_bounds_accesses(kernel, sizes)
            found.extend(f"{region.name}: {access}" for access in accesses)
        return lowered

    patch.setattr(LoweringMemo, "lower", checked)
    yield found
