"""Find what masks iterations of a product chain, and which share of its blocks is computed."""

from __future__ import annotations

from collections.abc import Sequence

from tofuse.analysis.intervals import Integers, Interval, IntervalRules
from tofuse.analysis.masked_values import find_masks, may_matter
from tofuse.backends.cpu.llvm.matmul.pack import WIDTH
from tofuse.backends.cpu.schedule.chain_analysis import ChainAnalysis
from tofuse.ir.dims import size_hint
from tofuse.ir.kernel import Kernel, Load, Reduce, iteration_axes
from tofuse.ir.mask import Mask
from tofuse.schedule.backward_slice import backward_slice


def chain_masks(found: ChainAnalysis) -> tuple[Mask, ...]:
    """Return the masks of the longest axis that has some.

    It is the columns of a product, and all of the depth of others. A block of rows can compute
    which iterations each of these masks excludes.
    """
    kernel = found.kernel
    axes = dict.fromkeys(s.columns for s in found.sums)
    reductions = [s for s in kernel.body if isinstance(s, Reduce)]
    usable = [a for a in axes if all(s.over == (a,) for s in reductions if a in s.over)]
    for axis in sorted(usable, key=lambda a: -size_hint(kernel.extent(a))):
        if size_hint(kernel.extent(axis)) <= WIDTH:
            break
        masks = [m for m in find_masks(kernel, axis) if _has_interval(found, m)]
        if masks:
            return tuple(masks)
    return ()


def computed_share(kernel: Kernel, masks: Sequence[Mask], rows: str, tile_rows: int) -> float:
    """Return the share of the iterations of the masked axis that blocks of rows compute.

    Masks that depend on loaded values exclude nothing here.
    """
    if not masks:
        return 1.0
    axis, extents = masks[0].axis, {a.name: size_hint(a.extent) for a in kernel.axes}
    computed, blocks = 0, range(0, extents[rows], tile_rows)
    whole = {a: Interval(0, max(0, n - 1)) for a, n in extents.items()}
    for row in blocks:
        height = Interval(row, min(extents[rows], row + tile_rows) - 1)
        inside = []
        for first in range(0, extents[axis], WIDTH):
            width = Interval(first, min(extents[axis], first + WIDTH) - 1)
            block = {**whole, rows: height, axis: width}
            if may_matter(masks, IntervalRules(kernel, block, Integers())):
                inside.append(first)
        computed += inside[-1] + WIDTH - inside[0] if inside else WIDTH
    return min(1.0, computed / max(1, len(blocks) * extents[axis]))


def _has_interval(found: ChainAnalysis, mask: Mask) -> bool:
    """Whether the rules have an interval of a mask's condition in a block of rows.

    Loads are along one axis of the block at most.
    """
    kernel, inside_block = found.kernel, {found.rows, mask.axis, *found.outer}
    value_axes, _ = iteration_axes(kernel)
    if not value_axes[mask.condition] <= inside_block:
        return False
    axes = {a.name: Interval(0, size_hint(a.extent)) for a in kernel.axes}
    if IntervalRules(kernel, axes, Integers()).of(mask.condition) is None:
        return False
    needed = backward_slice([kernel.definitions[mask.condition]], kernel.definitions)
    inside = [set(s.index.axes) - {*found.outer} for s in needed if isinstance(s, Load)]
    return all(len(a) <= 1 and a <= {found.rows, mask.axis} for a in inside)
