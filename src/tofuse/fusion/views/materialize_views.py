"""Graph -> Graph: copy a view that strides cannot express where an op needs a tensor."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from tofuse.analysis.alias import (
    MemRef,
    is_aten_view,
    is_eliminated_concat,
    is_view,
    view_memref,
    visible_strides,
)
from tofuse.fusion.lower.align import aligns
from tofuse.ir.dims import contiguous_strides, equal_strides, size_hint
from tofuse.ir.graph import Graph, Names, Op, Value, substitute_operands
from tofuse.ir.types import DType
from tofuse.ops.table import OPS, Pattern

Requirement = Callable[[Value, Mapping[Value, MemRef]], bool]  # False: the value is copied


def materialize_views(graph: Graph, storage: Mapping[Value, MemRef]) -> Graph:
    """Make tensors of the operands of library calls and of the graph's outputs.

    Outputs get the strides they were captured with. Operands of concats get strides, and so do
    operands of slices that do not align with any loops.
    """
    storage = dict(storage)
    ops: list[Op] = []
    copies: dict[Value, Value] = {}
    names = Names(graph)
    producers = graph.producers()

    def materialized(v: Value | None, requirement: Requirement) -> Value | None:
        if v is None or requirement(v, storage):
            return v
        if v not in copies:
            copies[v] = replace(v, name=names.fresh(f"{v.name}_copy"))
            loc = producers[v].loc if v in producers else None
            ops.append(Op("convert", (v,), (copies[v],), (("dtype", v.dtype),), loc))
            storage[copies[v]] = MemRef(copies[v], 0, visible_strides(copies[v]))
        return copies[v]

    for op in graph.ops:
        requirement = _operand_requirement(op, producers, storage)
        if requirement is not None:
            contiguous = _contiguous_inputs(op, storage)
            replaced: dict[Value, Value] = {}
            for k, v in enumerate(op.inputs):
                copy = materialized(v, _is_contiguous if k in contiguous else requirement)
                if copy is not None and copy is not v:
                    replaced[v] = copy
            if replaced:
                op = replace(op, operands=substitute_operands(op.operands, replaced))
        if is_view(op) and op.result not in storage and op.inputs[0] in storage:
            memref = view_memref(op, storage[op.inputs[0]])
            storage |= {} if memref is None else {op.result: memref}
        ops.append(op)
    outputs = tuple(
        materialized(v, lambda v, s: _is_returnable(v, s, graph.inputs)) for v in graph.outputs
    )
    return graph if tuple(ops) == graph.ops else replace(graph, ops=tuple(ops), outputs=outputs)


def _operand_requirement(
    op: Op, producers: Mapping[Value, Op], storage: Mapping[Value, MemRef]
) -> Requirement | None:
    """Return what an op requires of its operands; None if it takes any value."""
    requirement = None if is_eliminated_concat(op) else REQUIREMENTS.get(OPS[op.kind].pattern)
    if op.kind == "slice" and not aligns(op, storage, producers):
        requirement = _has_strides  # of merged dimensions: its operand becomes a tensor
    if requirement is None:
        return None
    return _is_as_captured if is_aten_view(op) else requirement


def _has_strides(v: Value, storage: Mapping[Value, MemRef]) -> bool:
    """Whether strides express a value."""
    return v in storage


def _is_torch_view(v: Value, storage: Mapping[Value, MemRef]) -> bool:
    """Whether torch can express a value as a view; it has no negative strides."""
    return v in storage and all(size_hint(s) >= 0 for s in storage[v].strides)


def _is_contiguous(v: Value, storage: Mapping[Value, MemRef]) -> bool:
    """Whether a value is stored in row-major order without gaps."""
    return v in storage and equal_strides(storage[v].strides, contiguous_strides(v.shape), v.shape)


def _is_as_captured(v: Value, storage: Mapping[Value, MemRef]) -> bool:
    """Whether a value has the strides it has in eager, which an aten view depends on."""
    return _is_torch_view(v, storage) and equal_strides(storage[v].strides, v.layout, v.shape)


def _contiguous_inputs(op: Op, storage: Mapping[Value, MemRef]) -> tuple[int, ...]:
    """Return the inputs of a library call that must be contiguous.

    These are inputs whose rows the call adds one by one: with gaps, it runs a loop for each row,
    which is ten times slower than a copy before the call. No kernel copies complex elements.
    """
    target = op.attr("target") if op.kind == "opaque" else ""
    if len(op.inputs) > 2 and op.inputs[2].dtype is DType.OTHER:
        return ()
    if target == "aten.index_add.default":
        return (2,)
    if target == "aten.scatter_add.default" and op.inputs[1] in storage:
        return (2,) if 0 in storage[op.inputs[1]].strides else ()
    return ()


def _is_returnable(v: Value, storage: Mapping[Value, MemRef], inputs: Collection[Value]) -> bool:
    """Whether the caller may get a value as it is stored.

    Elements must not repeat (stride 0) if they are separate in eager. A value whose elements do
    not overlap in eager needs eager's strides, unless it is in memory of an argument, or has
    elements that no kernel can copy, such as complex ones.
    """
    if not _is_torch_view(v, storage):
        return False
    strides = storage[v].strides
    dims = zip(v.shape, v.layout, strides, strict=True)
    if any(extent != 1 and stride == 0 != eager_stride for extent, eager_stride, stride in dims):
        return False
    if v.layout != visible_strides(v) or storage[v].root in inputs or v.dtype is DType.OTHER:
        return True
    return equal_strides(strides, v.layout, v.shape)


REQUIREMENTS: dict[Pattern, Requirement] = {
    Pattern.OPAQUE: _is_torch_view,
    Pattern.GATHER: _is_torch_view,
    Pattern.RANDOM: _is_torch_view,
    Pattern.CONCAT: _has_strides,
}
