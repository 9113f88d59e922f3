"""Reads and writes at a position that a tensor holds, such as `cache[:, pos] = x`.

Python reads the number for such an index, which no graph can; as gathers they need none.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from tofuse.capture.fx.mutation import written
from tofuse.capture.fx.node_tensors import memory, tensor_of

WHOLE = slice(None)
INTEGERS = frozenset((torch.int64, torch.int32, torch.int16, torch.int8))


def gather_positions(gm: GraphModule) -> None:
    """Take the place of indexing by tensors of one integer, where nobody can tell the difference:
    what is read is a copy then, and no view."""
    seen = {memory(t) for node in gm.graph.nodes for t in _shared(node)}
    for node in list(gm.graph.nodes):
        if node.target not in (operator.getitem, operator.setitem):
            continue
        tensor = tensor_of(node.args[0]) if isinstance(node.args[0], Node) else None
        places = None if tensor is None else _places(node.args[1], tensor.dim())
        if places is None:
            continue
        assert tensor is not None
        with gm.graph.inserting_before(node):
            if node.target is operator.getitem:
                if memory(tensor) in seen:
                    continue
                call = torch.ops.aten.index.Tensor
                gathered = gm.graph.call_function(call, (node.args[0], places))
                gathered.meta = dict(node.meta)
                node.replace_all_uses_with(gathered)
            elif _fits(node.args[2], tensor):
                call = torch.ops.aten.index_put_.default
                put = gm.graph.call_function(call, (node.args[0], places, node.args[2]))
                put.meta = {**node.meta, "example_value": tensor}
            else:
                continue
        gm.graph.erase_node(node)
        gm.recompile()


def _shared(node: Node) -> list[torch.Tensor]:
    """Tensors of which it matters whether they are views: written ones, and the results that are
    no arguments."""
    if node.op != "output":
        return written(node)
    results = [n for n in tree_leaves(node.args) if isinstance(n, Node) and n.op != "placeholder"]
    return [t for n in results if (t := tensor_of(n)) is not None]


def _places(index: object, rank: int) -> list[Node | None] | None:
    """The indices of a gather: all of some dimensions, then one integer's tensor; or None."""
    given = list(index) if isinstance(index, (tuple, list)) else [index]
    if isinstance(index, list) or len(given) > rank:
        return None
    *before, last = given
    if any(x != WHOLE for x in before if not isinstance(x, Node)):
        return None
    if not isinstance(last, Node) or any(isinstance(x, Node) for x in before):
        return None
    position = tensor_of(last)
    if position is None or position.dim() or position.dtype not in INTEGERS:
        return None
    return [*[None] * len(before), last]


def _fits(value: object, tensor: torch.Tensor) -> bool:
    """Whether it may be written as it is."""
    found = tensor_of(value) if isinstance(value, Node) else None
    return found is not None and found.dtype is tensor.dtype and found.dim() < tensor.dim()
