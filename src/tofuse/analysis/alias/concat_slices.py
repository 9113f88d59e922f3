"""The slices of eliminated concats into which producers write."""

from __future__ import annotations

from collections.abc import Mapping

from tofuse.analysis.alias.memory_effects import is_eliminated_concat, view_ops
from tofuse.analysis.alias.strides import MemRef
from tofuse.ir.dims import Dim, product
from tofuse.ir.graph import Graph, Op, Value


def concat_slices(graph: Graph) -> dict[Value, MemRef]:
    """Return the slice of an eliminated concat for each tensor that is written into one."""
    slices: dict[Value, MemRef] = {}
    producers = graph.producers() if any(map(is_eliminated_concat, graph.ops)) else {}
    for concat in filter(is_eliminated_concat, graph.ops):
        start: Dim = 0
        for operand in concat.inputs:
            root, strides, offset = operand_slice(operand, concat, start, producers)
            assert root not in slices, f"{root.name} is an operand of two eliminated concats"
            slices[root] = MemRef(concat.results[0], offset, strides)
            start = start + operand.shape[concat.int("dim")]
    return slices


def operand_slice(
    operand: Value, concat: Op, start: Dim, producers: Mapping[Value, Op]
) -> tuple[Value, tuple[Dim, ...], Dim]:
    """Return the tensor behind an operand of a concat, with its strides and offset in the result.

    `start` is the operand's first index along the concat's dimension. Permutations and reshapes
    that add or drop dimensions of one element are followed to the tensor that they view.
    """
    layout = concat.results[0].layout
    v, strides = operand, layout
    for view in view_ops(operand, producers):
        operand_strides = _operand_strides(view, strides)
        if operand_strides is None:
            break
        v, strides = view.inputs[0], operand_strides
    return v, strides, product((start, layout[concat.int("dim")]))


def _operand_strides(view: Op, strides: tuple[Dim, ...]) -> tuple[Dim, ...] | None:
    """Return the strides of a view's operand for which the view has `strides`.

    None unless the view permutes dimensions, or adds or drops dimensions of one element.
    """
    shape = view.inputs[0].shape
    if view.kind == "permute":
        by_dim = dict(zip(view.ints("dims"), strides, strict=True))
        return tuple(by_dim[d] for d in range(len(shape)))
    long = [s for s, extent in zip(strides, view.result.shape, strict=True) if extent != 1]
    extents = tuple(d for d in view.result.shape if d != 1)
    if view.kind != "reshape" or extents != tuple(d for d in shape if d != 1):
        return None
    result: list[Dim] = []
    outer: Dim = 1  # the stride of a dimension of one element
    for extent in reversed(shape):
        result.append(outer if extent == 1 else long.pop())
        outer = product((result[-1], extent))
    return tuple(reversed(result))
