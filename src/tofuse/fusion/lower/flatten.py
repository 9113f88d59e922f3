"""Flatten a region to one dimension, for reshapes whose dimensions have no common axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tofuse.analysis.alias import MemRef, reshape_strides
from tofuse.ir.dims import Dim, product
from tofuse.ir.graph import Op, Value, substitute_operands
from tofuse.ir.region import Region
from tofuse.ops.table import OPS, Pattern

FlatRegion = tuple[Region, dict[Value, MemRef]]


def flatten(region: Region, storage: Mapping[Value, MemRef]) -> FlatRegion | None:
    """Return a region that does the same work over one dimension, in row-major order.

    None unless all ops are elementwise or reshapes, all values have one number of elements or are
    scalars, and all inputs and outputs are contiguous in row-major order.
    """
    values = (*region.inputs, *(op.result for op in region.ops))
    count = next((product(v.shape) for v in values if v.shape), 1)
    flat: dict[Value, Value] = {}
    flat_storage: dict[Value, MemRef] = {}
    for v in values:
        if v.shape and product(v.shape) != count:
            return None
        shape: tuple[Dim, ...] = (count,) if v.shape else ()
        flat[v] = Value(replace(v.type, shape=shape), v.name)
        if v in storage and (v in region.inputs or v in region.outputs):
            memref = storage[v]
            strides = reshape_strides(v.shape, memref.strides, shape)
            if strides is None or strides not in ((1,), (0,), ()):  # 0: a broadcast scalar
                return None
            flat_storage[flat[v]] = MemRef(memref.root, memref.offset, strides)
    ops: list[Op] = []
    for op in region.ops:
        flat_op = _flat_op(op, flat)
        if flat_op is None:
            return None
        ops.append(flat_op)
    outputs = tuple(flat[v] for v in region.outputs)
    return Region(region.name, tuple(ops), outputs), flat_storage


def _flat_op(op: Op, flat: dict[Value, Value]) -> Op | None:
    """Return the op on flat values; None if it depends on their shape."""
    result = flat[op.result]
    attrs = tuple((name, result.shape if name == "shape" else attr) for name, attr in op.attrs)
    pattern = OPS[op.kind].pattern
    is_scalar_broadcast = pattern is Pattern.BROADCAST and not op.inputs[0].shape
    if (
        pattern is not Pattern.ELEMENTWISE
        and op.kind not in ("reshape", "full")
        and not is_scalar_broadcast
    ):
        return None
    operands = substitute_operands(op.operands, flat)
    return replace(op, operands=operands, results=(result,), attrs=attrs)
