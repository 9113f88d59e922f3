"""Places that the backward reads are saved in as few bytes as hold them.

Where the largest of a window or of a row stands is 64 bits to PyTorch. It is less than how many
there are to choose from, so that 8 or 16 bits mostly do.
"""

from __future__ import annotations

import math
import operator

import torch
from torch.fx import GraphModule, Node

from tofuse.capture.fx.eager_memory import backward_nodes
from tofuse.capture.lower.convert import can_fuse
from tofuse.capture.lower.lowerable import MOVING
from tofuse.hints import stands_for

aten = torch.ops.aten
_POOLS = {aten.max_pool2d_with_indices.default: 2, aten.max_pool3d_with_indices.default: 3}
_ROWS = (aten.max.dim, aten.min.dim)
_NARROW = (torch.int8, torch.int16, torch.int32)


def narrow_places(joint: GraphModule) -> GraphModule:
    """Let the backward of a joint graph read places through the narrowest type, if kernels of ours
    make and read them."""
    backward = backward_nodes(list(joint.graph.nodes))
    for node in list(joint.graph.nodes):
        bound = None if node in backward else _bound(node)
        readers = [u for u in node.users if u in backward]
        if bound is None or not readers or not all(map(_in_kernels, readers)):
            continue
        dtype = next((d for d in _NARROW if bound <= torch.iinfo(d).max + 1), None)
        if dtype is None or dtype.itemsize >= node.meta["val"].dtype.itemsize:
            continue
        wide = _converted(_converted(node, dtype), node.meta["val"].dtype)
        for reader in readers:
            reader.replace_input_with(node, wide)
    return joint


def _bound(node: Node) -> int | None:
    """What all elements are less than, and not negative; None where that is not known."""
    if node.target is not operator.getitem or node.args[1] != 1:
        return None
    call = node.args[0]
    if not isinstance(call, Node) or not can_fuse(call):
        return None
    source = call.args[0]
    shape = source.meta["val"].shape if isinstance(source, Node) else ()
    if call.target in _POOLS:
        shape = shape[-_POOLS[call.target] :]
    elif call.target not in _ROWS or not isinstance(call.args[1], int):
        return None
    elif shape:
        shape = (shape[call.args[1]],)
    return math.prod(shape) if all(type(n) is int for n in shape) else None


def _in_kernels(reader: Node) -> bool:
    """Whether kernels of ours read a value, there or through views."""
    if not can_fuse(reader):
        return False
    moved = str(reader.target).rpartition(".")[0] in MOVING
    return not moved or all(map(_in_kernels, reader.users))


def _converted(node: Node, dtype: torch.dtype) -> Node:
    with node.graph.inserting_after(node):
        made = node.graph.call_function(aten._to_copy.default, (node,), {"dtype": dtype})
    made.meta["val"] = torch.empty_like(node.meta["val"], dtype=dtype)
    stands_for(made, 0)
    return made
