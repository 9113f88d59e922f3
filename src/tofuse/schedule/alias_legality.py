"""Which results of a kernel may be written over what it reads."""

from __future__ import annotations

from dataclasses import dataclass

from tofuse.ir.kernel import Affine, Load, Store, Take, Uniform
from tofuse.ir.nest import (
    Do,
    For,
    Nest,
    Node,
)

Where = tuple[tuple[int, ...], frozenset[str]]  # a path into the nest, and the axes around it


@dataclass(frozen=True)
class _Access:
    """A statement that touches a buffer: its index (None: any element), its place in time.

    `path` orders statements inside common loops, whose axes `around` gives from the outside in.
    """

    index: Affine | None
    path: tuple[int, ...]
    around: tuple[str, ...]
    head: bool


def overwrites(nest: Nest) -> tuple[tuple[int, int], ...]:
    """Positions (read, written) of buffers of one type that may be one piece of memory."""
    places = {b.name: k for k, b in enumerate(nest.kernel.buffers)}
    dtypes = {b.name: b.dtype for b in nest.kernel.buffers}
    pairs = [(places[r], places[w]) for w, r in overwritable(nest) if dtypes[r] == dtypes[w]]
    return tuple(sorted(pairs, key=lambda pair: pair[::-1]))


def overwritable(nest: Nest) -> frozenset[tuple[str, str]]:
    """Pairs (written, read) of buffers that may be one piece of memory.

    That is where every element is read for the last time, at one point of the loops, before it
    is written there: all reads stand before the write in the loops that they share, and these
    tell the elements apart.
    """
    reads: dict[str, list[_Access]] = {}
    writes: dict[str, list[_Access]] = {}
    for number, phase in enumerate(nest.phases):
        band = tuple(lp.axis for lp in phase.band)
        _collect(phase.head, (number, 0), (), bool(band), reads, writes)
        _collect(phase.body, (number, 1), band, False, reads, writes)
    inputs = [b.name for b in nest.kernel.buffers if b.role == "in"]
    return frozenset(
        (written, read)
        for written, stores in writes.items()
        for read in inputs
        if all(_before(r, w) for r in reads.get(read, []) for w in stores)
    )


def _collect(
    nodes: tuple[Node, ...],
    path: tuple[int, ...],
    around: tuple[str, ...],
    head: bool,
    reads: dict[str, list[_Access]],
    writes: dict[str, list[_Access]],
) -> None:
    for k, node in enumerate(nodes):
        here = (*path, k)
        match node:
            case For():
                _collect(node.body, here, (*around, node.loop.axis), head, reads, writes)
            case Do(stmt=Load() as s):
                reads.setdefault(s.buffer, []).append(_Access(s.index, here, around, head))
            case Do(stmt=Take() as s):
                reads.setdefault(s.buffer, []).append(_Access(None, here, around, head))
            case Do(stmt=Uniform() as s):  # every thread reads it first, for its keys
                reads.setdefault(s.seed, []).append(_Access(None, here, around, head))
            case Do(stmt=Store() as s):
                writes.setdefault(s.buffer, []).append(_Access(s.index, here, around, head))
            case _:
                continue


def _before(read: _Access, write: _Access) -> bool:
    """Whether no element is read after it was written."""
    if read.path[0] < write.path[0]:
        return True  # an earlier phase
    if read.index != write.index or read.path > write.path or read.head or write.head:
        return False
    assert read.index is not None
    common = 0  # the loops that enclose both: phase, half, then a number for each loop
    for a, b in zip(read.path[2:-1], write.path[2:-1], strict=False):
        if a != b:
            break
        common += 1
    band = len(write.around) - (len(write.path) - 3)
    shared = write.around[: band + common]
    return set(shared) <= set(read.index.axes)
