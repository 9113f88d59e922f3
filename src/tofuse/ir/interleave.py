"""Find interleave groups: strided accesses that together touch contiguous memory (RGB pixels)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Union

from tofuse.ir.affine import AffineExpr
from tofuse.ir.dims import Dim
from tofuse.ir.kernel import Kernel, Load, Stmt, Store

MAX_STRIDE = 32  # elements: the largest factor of an interleave group
Access = Union[Load, Store]  # noqa: UP007


def is_interleaved(kernel: Kernel, index: AffineExpr, axis: str, along: str) -> bool:
    """Whether all elements along `axis` are between two neighbors along `along`.

    An example is the axis c < 3 of 3*i + c, or of 9*i + 3*c, with respect to i.
    """
    count, gap, step = kernel.extent(axis), index.coefficient(axis), index.coefficient(along)
    if not (isinstance(count, int) and isinstance(gap, int) and isinstance(step, int)):
        return False
    return axis != along and count >= 2 and gap >= 1 and (count - 1) * gap < step <= MAX_STRIDE


def shuffle_count(count: int) -> int:
    """Return the shuffles per vector that transpose rows of `count` elements, by prime factors."""
    total, factor = 0, 2
    while count > 1:
        while count % factor == 0:
            total, count = total + factor - 1, count // factor
        factor += 1
    return total


def is_vectorizable_stride(step: Dim, lanes: int) -> bool:
    """Whether a strided access is faster as whole vectors and shuffles than element by element."""
    return isinstance(step, int) and step not in (0, 1) and abs(step) <= max(1, lanes // 2)


def interleave_groups(stmts: Iterable[Stmt], along: str) -> dict[Access, tuple[Access, ...]]:
    """Return the interleave groups along an axis, as LLVM's InterleavedAccessInfo defines them.

    A group is the loads, or stores, of all elements between two neighbors along the axis. It is
    the entry of its first load or last store, in address order; other members have an empty entry.
    """
    candidates: dict[tuple[int, tuple[object, ...]], dict[int, Access]] = {}
    order: dict[Access, int] = {}
    for s in stmts:
        if isinstance(s, (Load, Store)):
            step, offset = s.index.coefficient(along), s.index.const
            if isinstance(step, int) and 2 <= step <= MAX_STRIDE and isinstance(offset, int):
                guard = s.guard if isinstance(s, Load) else None
                key = type(s), s.buffer, s.index.terms, guard
                candidates.setdefault((step, key), {}).setdefault(offset, s)
                order[s] = len(order)
    groups: dict[Access, tuple[Access, ...]] = {}
    for (step, _), by_offset in candidates.items():
        end = min(by_offset)
        for first in sorted(by_offset):
            if first >= end and all(first + k in by_offset for k in range(step)):
                members = tuple(by_offset[first + k] for k in range(step))
                groups |= dict.fromkeys(members, ())
                leader = min if isinstance(members[0], Load) else max
                groups[leader(members, key=lambda s: order[s])] = members
                end = first + step
    return groups
