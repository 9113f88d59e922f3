"""Parameters of rows: which are loaded again for each row, since registers cannot hold them."""

from __future__ import annotations

from collections.abc import Sequence

from tofuse.cost.thresholds import HELD_ROW_BYTES
from tofuse.ir.kernel import (
    WRITES,
    Definition,
    Gather,
    Kernel,
    Reduce,
    Stmt,
    Uniform,
    iteration_axes,
)
from tofuse.ir.tile import Tile


def sink_parameters(
    kernel: Kernel, looped: Sequence[str], tiles: Sequence[Tile]
) -> frozenset[Definition]:
    """Return the statements along whole rows that a loop over the `looped` axes repeats.

    Their values are the same in each iteration. Outside of the loop they would be held in
    registers next to the sums of columns.
    """
    whole = {a: t for t in tiles if t.role == "whole" for a in t.axes}
    value_axes, stmt_axes = iteration_axes(kernel)
    users: dict[str, list[Stmt]] = {}
    for s in kernel.body:
        for name in s.uses:
            users.setdefault(name, []).append(s)
    sunk: set[Definition] = set()
    held = sum(
        r.dtype.itemsize * _elements(value_axes[r.name], whole)
        for r in kernel.body
        if isinstance(r, Reduce) and not set(r.over).isdisjoint(looped)
    )
    for s in reversed(kernel.body):
        if isinstance(s, (*WRITES, Reduce, Gather, Uniform)) or not stmt_axes[s].isdisjoint(looped):
            continue
        readers = users.get(s.name, [])
        in_loop = [not stmt_axes[u].isdisjoint(looped) for u in readers]
        is_along_row = not stmt_axes[s].isdisjoint(whole)
        if is_along_row and all(i or u in sunk for i, u in zip(in_loop, readers, strict=True)):
            sunk.add(s)
            held += any(in_loop) * s.dtype.itemsize * _elements(value_axes[s.name], whole)
    return frozenset(sunk) if held > HELD_ROW_BYTES else frozenset()


def _elements(axes: frozenset[str], whole: dict[str, Tile]) -> int:
    """Return the elements of a value in the blocks of whole rows; 0 if it has no row."""
    tiles = {whole[a] for a in axes if a in whole}
    count = 1 if tiles else 0
    for t in tiles:
        count *= t.block
    return count
