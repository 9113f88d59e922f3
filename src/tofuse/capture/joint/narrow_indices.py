"""The pass that saves indices for the backward in the narrowest integer type.

PyTorch's index of the maximum of a window or row has 64 bits. It is less than the size of the image
or row, so 8 or 16 bits often suffice.
"""

from __future__ import annotations

import math
import operator

import torch
from torch.fx import GraphModule, Node

from tofuse.capture.fx.phases import backward_nodes
from tofuse.capture.lower.lowerable import DATA_MOVEMENT, is_lowerable
from tofuse.hints import set_call_count

aten = torch.ops.aten
_POOLING_RANKS = {aten.max_pool2d_with_indices.default: 2, aten.max_pool3d_with_indices.default: 3}
_DIM_REDUCTIONS = (aten.max.dim, aten.min.dim)
_NARROW_DTYPES = (torch.int8, torch.int16, torch.int32)


def narrow_indices(joint: GraphModule) -> GraphModule:
    """Convert indices that the backward reads to the narrowest type and back.

    Kernels must compute and read them, so that the conversions fuse.
    """
    backward = backward_nodes(list(joint.graph.nodes))
    for node in list(joint.graph.nodes):
        bound = None if node in backward else _index_bound(node)
        users = [u for u in node.users if u in backward]
        if bound is None or not users or not all(map(_is_read_by_kernels, users)):
            continue
        dtype = next((d for d in _NARROW_DTYPES if bound <= torch.iinfo(d).max + 1), None)
        if dtype is None or dtype.itemsize >= node.meta["val"].dtype.itemsize:
            continue
        wide = _insert_convert(_insert_convert(node, dtype), node.meta["val"].dtype)
        for user in users:
            user.replace_input_with(node, wide)
    return joint


def _index_bound(node: Node) -> int | None:
    """Return an upper bound (exclusive) of the elements of an index tensor; None if unknown."""
    if node.target is not operator.getitem or node.args[1] != 1:
        return None
    call = node.args[0]
    if not isinstance(call, Node) or not is_lowerable(call):
        return None
    source = call.args[0]
    shape = source.meta["val"].shape if isinstance(source, Node) else ()
    if call.target in _POOLING_RANKS:
        shape = shape[-_POOLING_RANKS[call.target] :]
    elif call.target not in _DIM_REDUCTIONS or not isinstance(call.args[1], int):
        return None
    elif shape:
        shape = (shape[call.args[1]],)
    return math.prod(shape) if all(type(n) is int for n in shape) else None


def _is_read_by_kernels(user: Node) -> bool:
    """Whether kernels read a value in this user, or through views and copies of it."""
    if not is_lowerable(user):
        return False
    moves_data = str(user.target).rpartition(".")[0] in DATA_MOVEMENT
    return not moves_data or all(map(_is_read_by_kernels, user.users))


def _insert_convert(node: Node, dtype: torch.dtype) -> Node:
    with node.graph.inserting_after(node):
        convert = node.graph.call_function(aten._to_copy.default, (node,), {"dtype": dtype})
    convert.meta["val"] = torch.empty_like(node.meta["val"], dtype=dtype)
    set_call_count(convert, 0)
    return convert
