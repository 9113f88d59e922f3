"""The memory of a definition's tensors: the order of their dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tofuse.analysis.alias import MemRef, view_chain, view_memref
from tofuse.frontends.input_layouts import slow_to_fast
from tofuse.frontends.items import Node
from tofuse.frontends.lowering import Lowering
from tofuse.ir.dims import Dim, size_hint, strides_in
from tofuse.ir.graph import Value


def dim_order(low: Lowering, x: Node) -> tuple[int, ...]:
    """Return the dimensions from slowest to fastest.

    An input has the stride order of its definition, and a view the order of what it views.
    """
    return tuple(slow_to_fast([size_hint(s) for s in _strides(low, x, low.declared_strides)]))


def has_contiguous_rows(low: Lowering, x: Node) -> bool:
    """Whether the elements of the last dimension follow each other in the inputs of this call."""
    return _strides(low, x, {})[-1] == 1


def _strides(low: Lowering, x: Node, known: Mapping[Value, tuple[Dim, ...]]) -> tuple[Dim, ...]:
    """Return the strides of a tensor, if those of the tensors in `known` are the given ones."""
    producers = low.producers()
    *views, base = view_chain(x.value, producers)
    memref = MemRef(base, 0, known.get(base, base.layout))
    for view in reversed(views):
        memref = view_memref(producers[view], memref) or MemRef(view, 0, view.layout)
    return memref.strides


def with_dim_order(low: Lowering, first_op: int, result: Node, like: Node) -> Node:
    """Give the result of an op from `first_op` on dense memory with the order of `like`."""
    order = dim_order(low, like)
    if order == tuple(range(result.rank)):
        return result
    strided = replace(result.value, strides=strides_in(order, result.shape))
    low.builder.replace_results(first_op, {result.value: strided})
    return Node(strided, result.dtype)
