"""Gradients that go to one place of each row are comparisons, which fuse, and no scatters.

That is what `max(dim)` and `gather` with one place a row send back, where the forward has seen that
the places exist. A scatter of the user's own is left to PyTorch, which checks them.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import Target

from tofuse.capture.fx.eager_memory import backward_nodes
from tofuse.hints import stands_for

aten = torch.ops.aten
_SCATTERS = (aten.scatter.src, aten.scatter_add.default)
FINDING = (aten.max.dim, aten.min.dim, aten.median.dim)
_TOLD = ("partitioner_tag", "stack_trace", "seq_nr", "original_aten", "from_node")


def compare_places(joint: GraphModule) -> GraphModule:
    """Where the backward of a joint graph scatters into one place of each row, let it compare."""
    order = list(joint.graph.nodes)
    backward = backward_nodes(order)
    for node in (n for n in order if n in backward and n.target in _SCATTERS):
        if _one_a_row(node) and _exist(node):
            _compare(node)
            joint.graph.erase_node(node)
    return joint


def _one_a_row(node: Node) -> bool:
    if len(node.args) != 4 or node.kwargs:
        return False
    x, dim, index, source = (a.meta.get("val") if isinstance(a, Node) else a for a in node.args)
    if not isinstance(dim, int) or not isinstance(x, torch.Tensor):
        return False
    if not isinstance(index, torch.Tensor) or not isinstance(source, torch.Tensor):
        return False
    row = list(x.shape)
    if not row or not all(type(n) is int for n in (*row, *index.shape, *source.shape)):
        return False
    row[dim] = 1
    return list(index.shape) == list(source.shape) == row and source.dtype == x.dtype


def _exist(node: Node) -> bool:
    """Whether the forward has found something at the places, in rows that are as long."""
    x, dim, index = node.args[:3]
    assert isinstance(x, Node) and isinstance(dim, int) and isinstance(index, Node)
    seen = [u for u in index.users if u.target is aten.gather.default and u.args[2] is index]
    if index.target is aten.unsqueeze.default:
        (index,) = index.all_input_nodes
    if index.target is operator.getitem and index.args[1] == 1:
        seen += [n for n in index.all_input_nodes if n.target in FINDING]
    return any(_along(n) == (x.meta["val"].shape, dim % x.meta["val"].dim()) for n in seen)


def _along(call: Node) -> tuple[torch.Size, int]:
    """The shape that a call looks at, and along which dimension."""
    source, dim = call.args[:2]
    assert isinstance(source, Node) and isinstance(dim, int)
    shape = source.meta["val"].shape
    return shape, dim % max(1, len(shape))


def _compare(node: Node) -> None:
    x, dim, index, source = node.args
    assert isinstance(x, Node) and isinstance(dim, int) and isinstance(index, Node)
    extent, rank, places = x.meta["val"].shape[dim], x.meta["val"].dim(), index.meta["val"]
    kind = {"dtype": places.dtype, "device": places.device}
    numbers = _put(node, aten.arange.start_step, 0, extent, **kind)
    column = _put(node, aten.view.default, numbers, [-1, *[1] * (rank - 1 - dim % rank)])
    here = _put(node, aten.eq.Tensor, column, index)
    if node.target is aten.scatter_add.default:
        source = _put(node, aten.add.Tensor, x, source)
    node.replace_all_uses_with(_put(node, aten.where.self, here, source, x))


def _put(before: Node, target: Target, *args: object, **kwargs: object) -> Node:
    """A call that stands for a part of another."""
    with before.graph.inserting_before(before):
        made = before.graph.call_function(target, args, kwargs)  # type: ignore[arg-type]
    values = [a.meta["val"] if isinstance(a, Node) else a for a in args]
    with before.meta["val"].fake_mode:
        value = target(*values, **kwargs)  # type: ignore[operator]
    made.meta = {k: before.meta[k] for k in _TOLD if k in before.meta} | {"val": value}
    if target is not aten.where.self:
        stands_for(made, 0)
    return made
