"""Whether a rule may be asked about a call."""

from __future__ import annotations

import torch
from torch.fx import Node

from tofuse.capture.depthwise import CONVOLUTIONS, convolves_depthwise
from tofuse.capture.devices import DEVICES
from tofuse.capture.dtypes import dtype_of
from tofuse.ir.types import DType

# What PyTorch, too, does with floats of eight bits: they are moved and converted.
_MOVING = (
    "_reshape_alias _to_copy _unsafe_view alias cat clone constant_pad_nd copy detach expand flip "
    "index_select permute select slice split split_with_sizes squeeze t transpose unbind unsqueeze "
    "view"
)
MOVING = frozenset(f"aten.{name}" for name in _MOVING.split())


def fusible(
    node: Node, target: torch._ops.OpOverload, known: dict[Node, bool] | None = None
) -> bool:
    """Whether every tensor of the call has a dtype, layout and device that the rules know.

    `known` holds the answers for nodes that were asked about before.
    """
    if target._schema.is_mutable or target._schema.overload_name.endswith("out"):
        return False
    known = {} if known is None else known
    for n in (*node.all_input_nodes, node):
        if n not in known:
            known[n] = _plain(n.meta.get("val"))
        if not known[n]:
            return False
    quarters = any(map(_has_quarters, (*node.all_input_nodes, node)))
    if quarters and str(target).rpartition(".")[0] not in MOVING:
        return False
    return target not in CONVOLUTIONS or convolves_depthwise(node)


def _has_quarters(node: Node) -> bool:
    value = node.meta.get("val")
    group = value if isinstance(value, (list, tuple)) else (value,)
    return any(dtype_of(t.dtype).is_quarter for t in group if isinstance(t, torch.Tensor))


def _plain(value: object) -> bool:
    """Whether every tensor of a node's value has a dtype, layout and device the rules know."""
    group = value if isinstance(value, (list, tuple)) else (value,)
    return all(
        t.layout is torch.strided
        and dtype_of(t.dtype) != DType.OTHER
        and t.device.type in DEVICES
        and not t.is_conj()
        and not t.is_neg()
        for t in group
        if isinstance(t, torch.Tensor)
    )
