"""Bytes of memory that ops and regions read and write."""

from __future__ import annotations

from collections.abc import Mapping

from tofuse.analysis.alias import MemRef, is_aten_view, is_eliminated_concat, is_wait
from tofuse.ir.dims import size_hint
from tofuse.ir.graph import Op, Value
from tofuse.ir.region import Region


def value_bytes(v: Value) -> int:
    """Return the bytes of a tensor, with size hints for symbols."""
    return size_hint(v.type.nbytes)


def op_bytes(op: Op) -> int:
    """Return the bytes that the op alone reads, each tensor once, and writes."""
    if is_wait(op):
        return 0
    return sum(value_bytes(v) for v in (*dict.fromkeys(op.inputs), *op.results))


def region_bytes(region: Region, storage: Mapping[Value, MemRef]) -> int:
    """Return the bytes that a region reads from outside, each tensor once, and writes.

    A view counts its own elements; all views of one tensor together count at most that tensor's
    bytes. An eliminated concat, a view that PyTorch makes, and a wait move no bytes.
    """
    last = region.ops[-1]
    if is_eliminated_concat(last) or is_aten_view(last) or is_wait(last):
        return 0
    view_bytes: dict[Value, dict[object, int]] = {}
    for v in region.inputs:
        ref = storage.get(v) or MemRef(v, 0, v.layout)
        views = view_bytes.setdefault(ref.root, {})
        views[v.shape, ref.offset, ref.strides] = value_bytes(v)
    read = sum(min(value_bytes(root), sum(s.values())) for root, s in view_bytes.items())
    return read + sum(value_bytes(v) for v in region.outputs)
