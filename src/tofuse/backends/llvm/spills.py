"""Spill values to scratch for a later loop over the same row, and reload them there."""

from __future__ import annotations

from tofuse.backends.llvm.function_emitter import EmittedValue, FunctionEmitter
from tofuse.ir.nest import Reload


def spill(emitter: FunctionEmitter, name: str) -> None:
    """Store the current vectors of a value in its scratch array."""
    scratch, value = emitter.nest.spills[name], emitter.values[name]
    if scratch.index.axes and emitter.vector_axis is None and value.lanes != emitter.lanes:
        return
    for u in range(emitter.unroll):
        slot = emitter.scratch_element_pointer(scratch, u)
        emitter.store(slot, scratch.dtype, value.operands[u], emitter.lanes, emitter.mask(u))


def reload(emitter: FunctionEmitter, node: Reload) -> None:
    """Load the current vectors of a spilled value; a scalar if it has no vector axis."""
    scratch, lanes = node.scratch, emitter.lanes
    if emitter.vector_axis is not None and emitter.vector_axis not in scratch.index.axes:
        slot = emitter.scratch_element_pointer(scratch, 0)
        scalar = emitter.load(slot, scratch.dtype, 1, None)
        emitter.values[node.name] = EmittedValue((scalar,), scratch.dtype, 1)
        return
    vectors = []
    for u in range(emitter.unroll):
        slot = emitter.scratch_element_pointer(scratch, u)
        vectors.append(emitter.load(slot, scratch.dtype, lanes, emitter.mask(u)))
    emitter.define(node.name, vectors, scratch.dtype)
