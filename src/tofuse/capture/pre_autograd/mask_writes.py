"""Writes of what trains where a mask says, `x[mask] = y`: by operators whose gradients have sizes.

The gradient of an indexed write reads as many elements as the mask has, which no graph can tell.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import GraphModule, Node

from tofuse.capture.fx.node_tensors import tensor_of

MISMATCH = "shape mismatch: there are not as many values as places in the mask"


def write_by_mask(gm: GraphModule) -> None:
    """Take the place of such writes in a program of Dynamo's: one value for all places is a
    `where`, one for each a `masked_scatter_`, whose gradient lies in the values' own shape."""
    for node in gm.graph.find_nodes(op="call_function", target=operator.setitem):
        target, index, values = node.args
        mask = index[0] if isinstance(index, tuple) and len(index) == 1 else index
        found = [tensor_of(n) if isinstance(n, Node) else None for n in (target, mask, values)]
        x, m, y = found
        if x is None or m is None or y is None or not y.requires_grad:
            continue
        rest = x.shape[m.dim() :]
        if m.dtype is not torch.bool or not m.dim() or y.dtype is not x.dtype:
            continue
        row = y.dim() <= len(rest) or (y.dim() == len(rest) + 1 and y.shape[0] == 1)
        if not row and y.dim() != len(rest) + 1:
            continue
        call = gm.graph.call_function
        with gm.graph.inserting_before(node):
            wide = call(operator.getitem, (mask, (*[slice(None)] * m.dim(), *[None] * len(rest))))
            if row:
                gm.graph.call_method("copy_", (target, call(torch.where, (wide, values, target))))
            else:
                count = gm.graph.call_method("size", (values, 0))
                fits = call(operator.eq, (call(torch.sum, (mask,)), count))
                call(torch.ops.aten._assert_async.msg, (fits, MISMATCH))
                sizes = [gm.graph.call_method("size", (target, k)) for k in range(m.dim(), x.dim())]
                values = gm.graph.call_method("expand", (values, count, *sizes))
                gm.graph.call_method("masked_scatter_", (target, wide, values))
        gm.graph.erase_node(node)
        gm.recompile()
