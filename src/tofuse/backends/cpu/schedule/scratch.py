"""Allocate a thread's scratch arrays for spilled values, accumulators and Philox keys."""

from __future__ import annotations

from collections import Counter

from tofuse.backends.cpu.schedule.loop_placement import PHASE_LEVEL, LoopPlacement
from tofuse.cost.machine import CACHE_LINE
from tofuse.cost.thresholds import L1_SET_BYTES
from tofuse.ir.affine import make_affine
from tofuse.ir.dims import Dim, known_multiple, product
from tofuse.ir.kernel import WRITES, Carried, Definition, Reduce
from tofuse.ir.nest import Accumulator, Carry, Scratch
from tofuse.ir.staged_sum import is_staged, sequential_steps, stage_count
from tofuse.ir.types import DType

PHILOX_KEY_WORDS = 32  # the size of the array for the round keys of a random generator


class ScratchAllocator:
    """The scratch arrays of a nest.

    `arrays` holds spilled values and results of reductions by name, `spill_levels` the level of the
    loop whose range a spilled array covers. `block_bytes` is the workspace allocated so far.
    """

    def __init__(self, placement: LoopPlacement) -> None:
        self.placement = placement
        self.arrays: dict[str, Scratch] = {}
        self.spill_levels: dict[str, int] = {}
        self.block_bytes: Dim = 0
        self._names: Counter[str] = Counter()
        body = placement.kernel.body
        self._dtypes = {s.name: s.dtype for s in body if not isinstance(s, WRITES)}

    def spill(self, stmt: Definition, level: int) -> Scratch:
        """Allocate an array for a value over the loops from `level` on."""
        axes = self.placement.inner_axes(stmt.name, level)
        self.arrays[stmt.name] = self._allocate(stmt.name, stmt.dtype, axes, level, pads_rows=True)
        self.spill_levels[stmt.name] = level
        return self.arrays[stmt.name]

    def reduction_array(self, r: Reduce, level: int) -> Scratch:
        """Return the array for the result of a reduction; allocate it at the first call."""
        if r.name not in self.arrays:
            axes = self.placement.inner_axes(r.name, level)
            self.arrays[r.name] = self._allocate(r.name, r.dtype, axes, level)
        return self.arrays[r.name]

    def accumulator(self, r: Reduce, level: int) -> Accumulator:
        """Return the state of a reduction over the loop at `level`."""
        axes = self.placement.inner_axes(r.name, level)
        if level != PHASE_LEVEL and not axes:
            return Accumulator(r)
        array = self.reduction_array(r, level)
        if r.position is None:
            return Accumulator(r, array, stages=self._stage_arrays(r, level))
        best = self._allocate(f"{r.name}.best", self._dtypes[r.arg], axes, level)
        return Accumulator(r, array, best)

    def carry(self, s: Carried, level: int) -> Carry:
        """Return what one iteration of the loop at `level` hands to the next."""
        axes = tuple(a for a in self.placement.inner_axes(s.name, level) if a != s.axis)
        if not axes:
            return Carry(s)
        return Carry(s, self._allocate(f"{s.name}.carry", s.dtype, axes, level))

    def philox_keys(self, seed: str) -> Scratch:
        """Allocate an array for the round keys of a seed, which all loops of a thread read."""
        offset = self.block_bytes
        self.block_bytes = -(-4 * PHILOX_KEY_WORDS // 64) * 64 + self.block_bytes
        return Scratch(f"{seed}.keys", DType.I32, make_affine([]), PHILOX_KEY_WORDS, offset)

    def _stage_arrays(self, r: Reduce, level: int) -> tuple[Scratch, ...]:
        """Allocate the stages of a long float sum; see `Accumulator`."""
        axes = self.placement.inner_axes(r.name, level)
        if not axes or not is_staged(r):
            return ()
        count = stage_count(sequential_steps(self.placement.kernel, self.placement.schedule, r))
        return tuple(self._allocate(f"{r.name}.{k}", r.dtype, axes, level) for k in range(count))

    def _allocate(
        self,
        name: str,
        dtype: DType,
        axes: tuple[str, ...],
        level: int,
        *,
        pads_rows: bool = False,
    ) -> Scratch:
        """Allocate an array; `pads_rows`: rows do not share the sets of a cache."""
        tiled = self.placement.tiled_axes(axes, level)
        extents = self.placement.extents(axes, tiled)
        strides = [product(extents[k + 1 :]) for k in range(len(axes))]
        if (
            pads_rows
            and len(axes) > 1
            and known_multiple(strides[0], L1_SET_BYTES // dtype.itemsize)
        ):
            strides[0] += CACHE_LINE // dtype.itemsize
        elements = product((extents[0], strides[0])) if axes else 1
        offset = self.block_bytes
        size = product((elements, dtype.itemsize))
        padded = (size + 127) // 64 * 64 if isinstance(size, int) else size + 128
        self.block_bytes = padded + self.block_bytes
        index = make_affine(zip(axes, strides, strict=True))
        self._names[name] += 1  # a repeated reduction has stages in each place
        unique = f"{name}.keep" if self._names[name] == 1 else f"{name}.keep{self._names[name]}"
        return Scratch(unique, dtype, index, elements, offset, tiled)
