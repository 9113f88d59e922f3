"""The pass that replaces scatters of one element per row by compare and select, which fuse.

The gradients of `max(dim)` and of `gather` with one index per row are such scatters; the forward
has validated their indices. The user's own scatters are left to PyTorch, which validates them.
"""

from __future__ import annotations

import operator
from itertools import chain

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import Target

from tofuse.capture.fx.phases import backward_nodes
from tofuse.hints import set_call_count
from tofuse.torch_internals.symbolic_shapes import tracing_operators

aten = torch.ops.aten
_SCATTERS = (aten.scatter.src, aten.scatter_add.default)
_INDEX_REDUCTIONS = (aten.max.dim, aten.min.dim, aten.median.dim)
_COPIED_META = ("partitioner_tag", "stack_trace", "seq_nr", "original_aten", "from_node")


def scatter_to_select(joint: GraphModule) -> GraphModule:
    """Replace the backward's scatters of one element per row by compare and select."""
    order = list(joint.graph.nodes)
    backward = backward_nodes(order)
    for node in (n for n in order if n in backward and n.target in _SCATTERS):
        if _has_one_index_per_row(node) and _indices_are_valid(node):
            _replace_by_select(node)
            joint.graph.erase_node(node)
    return joint


def _has_one_index_per_row(node: Node) -> bool:
    x, dim, index, source = _operands(node)
    row, *others = (list(n.meta["val"].shape) for n in (x, index, source))
    if not row or not all(type(n) is int for n in chain(row, *others)):
        return False
    row[dim] = 1
    return others == [row, row] and source.meta["val"].dtype == x.meta["val"].dtype


def _operands(scatter: Node) -> tuple[Node, int, Node, Node]:
    """Return the tensor, the dimension, the indices and the source."""
    x, dim, index, source = scatter.args
    assert isinstance(x, Node) and isinstance(dim, int)
    assert isinstance(index, Node) and isinstance(source, Node)
    return x, dim, index, source


def _indices_are_valid(node: Node) -> bool:
    """Whether a call of the forward has the same indices into a dimension of the same shape."""
    x, dim, index, _ = _operands(node)
    calls = [u for u in index.users if u.target is aten.gather.default and u.args[2] is index]
    if index.target is aten.unsqueeze.default:
        (index,) = index.all_input_nodes
    if index.target is operator.getitem and index.args[1] == 1:
        calls += [n for n in index.all_input_nodes if n.target in _INDEX_REDUCTIONS]
    return any(_shape_and_dim(n) == (x.meta["val"].shape, dim % x.meta["val"].dim()) for n in calls)


def _shape_and_dim(call: Node) -> tuple[torch.Size, int]:
    """Return the shape of a call's first operand, and its dimension argument."""
    source, dim = call.args[:2]
    assert isinstance(source, Node) and isinstance(dim, int)
    shape = source.meta["val"].shape
    return shape, dim % max(1, len(shape))


def _replace_by_select(node: Node) -> None:
    x, dim, index, source = _operands(node)
    extent, rank, indices = x.meta["val"].shape[dim], x.meta["val"].dim(), index.meta["val"]
    options = {"dtype": indices.dtype, "device": indices.device}
    numbers = _insert_call(node, aten.arange.start_step, 0, extent, **options)
    column = _insert_call(node, aten.view.default, numbers, [-1, *[1] * (rank - 1 - dim % rank)])
    is_selected = _insert_call(node, aten.eq.Tensor, column, index)
    if node.target is aten.scatter_add.default:
        source = _insert_call(node, aten.add.Tensor, x, source)
    node.replace_all_uses_with(_insert_call(node, aten.where.self, is_selected, source, x))


def _insert_call(before: Node, target: Target, *args: object, **kwargs: object) -> Node:
    """Insert a call that is a part of another in the call count."""
    with before.graph.inserting_before(before):
        call = before.graph.call_function(target, args, kwargs)  # type: ignore[arg-type]
    values = [a.meta["val"] if isinstance(a, Node) else a for a in args]
    with tracing_operators(before.meta["val"].fake_mode):
        value = target(*values, **kwargs)  # type: ignore[operator]
    call.meta = {k: before.meta[k] for k in _COPIED_META if k in before.meta} | {"val": value}
    if target is not aten.where.self:
        set_call_count(call, 0)
    return call
