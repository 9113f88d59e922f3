"""Data-dependent indexing, by 0-d integer tensors or boolean masks, as operators of static shape.

For `cache[:, pos] = x`, Python reads the number in `pos`, which a graph cannot contain. For
`x[mask] = y`, the gradient of `y` has a data-dependent size: the number of True elements.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import GraphModule, Node

from tofuse.capture.fx.aliases import storage_id, storage_ids, written_nodes
from tofuse.capture.fx.node_tensors import example_tensor
from tofuse.torch_internals.symbolic_shapes import tracing_operators

WHOLE = slice(None)
INTEGERS = frozenset((torch.int64, torch.int32, torch.int16, torch.int8))
MISMATCH = "shape mismatch: the number of values is not the number of True elements in the mask"


def indexing(gm: GraphModule) -> tuple[GraphModule, tuple[str, ...]]:
    """Replace data-dependent indexing in place by gathers, puts, `where` and `masked_scatter_`."""
    _replace_scalar_indices(gm)
    _replace_mask_writes(gm)
    return gm, ()


def _replace_scalar_indices(gm: GraphModule) -> None:
    """Replace indexing by 0-d integer tensors by `aten.index` and `aten.index_put_`.

    A read then returns a copy, not a view. So reads are kept where the difference can be seen.
    """
    aliased = {s for node in gm.graph.nodes for s in storage_ids(_alias_sensitive(node))}
    for node in list(gm.graph.nodes):
        if node.target not in (operator.getitem, operator.setitem):
            continue
        tensor = example_tensor(node.args[0])
        indices = None if tensor is None else _gather_indices(node.args[1], tensor.dim())
        if indices is None:
            continue
        assert tensor is not None
        with gm.graph.inserting_before(node):
            if node.target is operator.getitem:
                if storage_id(tensor) in aliased:
                    continue
                call = torch.ops.aten.index.Tensor
                gather = gm.graph.call_function(call, (node.args[0], indices))
                node.replace_all_uses_with(gather, propagate_meta=True)
            elif _is_assignable(node.args[2], tensor):
                call = torch.ops.aten.index_put_.default
                put = gm.graph.call_function(call, (node.args[0], indices, node.args[2]))
                put.meta = {**node.meta, "example_value": tensor}
            else:
                continue
        gm.graph.erase_node(node)
        gm.recompile()


def _replace_mask_writes(gm: GraphModule) -> None:
    """Replace `x[mask] = y` by writes whose operands and gradients have static shapes.

    A number becomes a `masked_fill_`. One row for all True elements becomes a `where`. One row for
    each becomes a `masked_scatter_` if the rows require grad; its gradient has their shape.
    """
    for node in gm.graph.find_nodes(op="call_function", target=operator.setitem):
        target, index, values = node.args
        mask = index[0] if isinstance(index, tuple) and len(index) == 1 else index
        x, m, y = map(example_tensor, (target, mask, values))
        if x is None or m is None or m.dtype is not torch.bool or not m.dim():
            continue
        rank = x.dim() - m.dim()  # of a row
        if y is not None and (y.dtype is not x.dtype or y.dim() > rank + 1):
            continue
        one_row = y is not None and (y.dim() <= rank or y.shape[0] == 1)
        if not (isinstance(values, (int, float)) or one_row or (y is not None and y.requires_grad)):
            continue
        call, method = gm.graph.call_function, gm.graph.call_method
        with gm.graph.inserting_before(node):
            wide = call(operator.getitem, (mask, (*[WHOLE] * m.dim(), *[None] * rank)))
            if y is None:
                with tracing_operators(m.fake_mode):
                    wide.meta["example_value"] = m[tuple([..., *[None] * rank])]
                fill = method("masked_fill_", (target, wide, values))
                fill.meta = {**node.meta, "example_value": x}
            elif one_row:
                method("copy_", (target, call(torch.where, (wide, values, target))))
            else:
                count = method("size", (values, 0))
                matches = call(operator.eq, (call(torch.sum, (mask,)), count))
                call(torch.ops.aten._assert_async.msg, (matches, MISMATCH))
                sizes = [method("size", (target, k)) for k in range(m.dim(), x.dim())]
                values = method("expand", (values, count, *sizes))
                method("masked_scatter_", (target, wide, values))
        gm.graph.erase_node(node)
        gm.recompile()


def _alias_sensitive(node: Node) -> list[Node]:
    """Return the nodes that a call writes, or the results of the program that are not arguments.

    For these, a view and a copy differ.
    """
    if node.op != "output":
        return written_nodes(node)
    return [n for n in node.all_input_nodes if n.op != "placeholder"]


def _gather_indices(index: object, rank: int) -> list[Node | None] | None:
    """Return the indices of a gather: None for whole dimensions, then a 0-d integer tensor.

    None if the index has another form.
    """
    parts = list(index) if isinstance(index, (tuple, list)) else [index]
    if isinstance(index, list) or len(parts) > rank:
        return None
    *before, last = parts
    if not isinstance(last, Node) or any(isinstance(x, Node) or x != WHOLE for x in before):
        return None
    position = example_tensor(last)
    if position is None or position.dim() or position.dtype not in INTEGERS:
        return None
    return [*[None] * len(before), last]


def _is_assignable(value: object, tensor: torch.Tensor) -> bool:
    """Return whether `index_put_` can write the value without a conversion."""
    source = example_tensor(value)
    return source is not None and source.dtype is tensor.dtype and source.dim() < tensor.dim()
