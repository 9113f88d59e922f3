"""Region -> Region over one flat dimension, for reshapes whose dimensions have no common axes."""

from __future__ import annotations

from dataclasses import replace

from tofuse.analysis.alias import reshape_strides
from tofuse.ir.dims import Dim, product
from tofuse.ir.graph import Attr, Op, Operand, Value, substitute
from tofuse.ir.region import Region, Strided
from tofuse.ops.table import Pattern, opdef

Flat = tuple[Region, dict[Value, Strided]]


def flattened(region: Region, storage: dict[Value, Strided]) -> Flat | None:
    """The same work on the same memory, element by element in row-major order.

    None unless all ops are elementwise or reshapes of values of one number of elements, or of
    single elements, and what is read and written lies row by row without gaps.
    """
    values = (*region.inputs, *(op.result for op in region.ops))
    count = next((product(v.shape) for v in values if v.shape), 1)
    flat: dict[Value, Value] = {}
    places: dict[Value, Strided] = {}
    for v in values:
        if v.shape and product(v.shape) != count:
            return None
        shape: tuple[Dim, ...] = (count,) if v.shape else ()
        flat[v] = Value(replace(v.type, shape=shape), v.name)
        if v in storage and (v in region.inputs or v in region.outputs):
            place = storage[v]
            strides = reshape_strides(v.shape, place.strides, shape)
            if strides is None or strides not in ((1,), (0,), ()):  # 0: one number for all
                return None
            places[flat[v]] = Strided(place.root, place.offset, strides)
    ops: list[Op] = []
    for op in region.ops:
        made = _flat_op(op, flat)
        if made is None:
            return None
        ops.append(made)
    outputs = tuple(flat[v] for v in region.outputs)
    return Region(region.name, tuple(ops), outputs), places


def _flat_op(op: Op, flat: dict[Value, Value]) -> Op | None:
    """The op on flat values; None where it minds their shape."""
    result = flat[op.result]
    shape: Attr = result.shape
    moved: dict[Value, Operand] = {v: flat[v] for v in op.inputs}
    attrs = tuple((name, shape if name == "shape" else value) for name, value in op.attrs)
    pattern = opdef(op.kind).pattern
    single = pattern is Pattern.BROADCAST and not op.inputs[0].shape
    if pattern is not Pattern.ELEMENTWISE and op.kind not in ("reshape", "full") and not single:
        return None
    operands = substitute(op.operands, moved)
    return replace(op, operands=operands, results=(result,), attrs=attrs)
