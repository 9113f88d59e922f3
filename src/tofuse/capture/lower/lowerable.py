"""Whether a rule may be asked about a call."""

from __future__ import annotations

from enum import Enum

import torch
from torch.fx import Node

from tofuse.capture.fx.devices import DEVICES
from tofuse.capture.fx.dtypes import dtype_of
from tofuse.capture.lower.depthwise import CONVOLUTIONS, convolves_depthwise
from tofuse.ir.types import DType

# What PyTorch, too, does with floats of eight bits: they are moved and converted.
_MOVING = (
    "_reshape_alias _to_copy _unsafe_view alias cat clone constant_pad_nd copy detach expand flip "
    "index_select permute select slice split split_with_sizes squeeze t transpose unbind unsqueeze "
    "view"
)
MOVING = frozenset(f"aten.{name}" for name in _MOVING.split())
KIND = "tofuse_kind"  # in a node's meta: its value, and of which kind that is


class Kind(Enum):
    """What a node's value is to the rules."""

    FOREIGN = "of a dtype, layout or device that they do not know"
    QUARTERS = "floats of eight bits"
    PLAIN = "any other tensors or numbers"


def fusible(node: Node, target: torch._ops.OpOverload) -> bool:
    """Whether every tensor of the call has a dtype, layout and device that the rules know."""
    if target._schema.is_mutable or target._schema.overload_name.endswith("out"):
        return False
    for n in (*node.all_input_nodes, node):
        kind = _known(n)
        if kind is Kind.FOREIGN:
            return False
        if kind is Kind.QUARTERS and str(target).rpartition(".")[0] not in MOVING:
            return False
    return target not in CONVOLUTIONS or convolves_depthwise(node)


def tensors_of(node: Node) -> list[torch.Tensor]:
    """The tensors of a node's value: one, or those of a tuple."""
    value = node.meta.get("val")
    group = value if isinstance(value, (list, tuple)) else (value,)
    return [t for t in group if isinstance(t, torch.Tensor)]


def _known(node: Node) -> Kind:
    """The kind of a node's value, which many are asked for again and again."""
    value = node.meta.get("val")
    known = node.meta.get(KIND)
    if known is None or known[0] is not value:
        known = node.meta[KIND] = (value, _kind(node))
    kind: Kind = known[1]
    return kind


def _kind(node: Node) -> Kind:
    tensors = tensors_of(node)
    for t in tensors:
        strided = t.layout is torch.strided and not t.is_conj() and not t.is_neg()
        if not strided or dtype_of(t.dtype) is DType.OTHER or t.device.type not in DEVICES:
            return Kind.FOREIGN
    return Kind.QUARTERS if any(dtype_of(t.dtype).is_quarter for t in tensors) else Kind.PLAIN
