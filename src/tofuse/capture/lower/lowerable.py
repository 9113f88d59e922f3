"""The legality of lowering a call: a rule, supported types and supported devices."""

from __future__ import annotations

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from tofuse.capture.fx.devices import is_supported
from tofuse.capture.fx.node_tensors import value_tensors
from tofuse.capture.lower.depthwise import CONVOLUTIONS, is_depthwise_call
from tofuse.capture.lower.lowering_rules import lowering_rule
from tofuse.capture.lower.number_ranges import numbers_fit
from tofuse.ir.types import DType
from tofuse.ops.reference import from_torch_dtype
from tofuse.torch_internals.operators import OpOverload, schema_of

# Operators that PyTorch, too, supports for fp8.
_DATA_MOVEMENT_NAMES = (
    "_reshape_alias _to_copy _unsafe_view alias cat clone constant_pad_nd copy detach expand flip "
    "index_select permute select slice split split_with_sizes squeeze t transpose unbind unsqueeze "
    "view"
)
DATA_MOVEMENT = frozenset(f"aten.{name}" for name in _DATA_MOVEMENT_NAMES.split())


def is_lowerable(node: Node) -> bool:
    """Whether a call has a rule that supports its operator, types and numbers.

    The rule may still reject its arguments.
    """
    if not isinstance(node.target, OpOverload):
        return False
    return lowering_rule(node.target) is not None and has_supported_arguments(node, node.target)


def has_supported_arguments(node: Node, target: OpOverload) -> bool:
    """Whether the rules support the tensors of a call, and the range of its numbers."""
    return _has_supported_types(node, target) and _has_supported_numbers(node, target)


def _has_supported_types(node: Node, target: OpOverload) -> bool:
    """Whether the rules support the dtype, layout and device of every tensor of the call.

    They support no call of an operator on tensors that gets only numbers, `aten.add(4, 3.3)`,
    except a conversion.
    """
    schema = schema_of(target)
    if schema.is_mutable or schema.overload_name.endswith("out"):
        return False
    has_tensors = any(map(value_tensors, node.all_input_nodes))
    takes_tensors = any(str(a.type) == "Tensor" for a in schema.arguments)
    if takes_tensors and not has_tensors and target is not torch.ops.aten._to_copy.default:
        return False
    moves_data = str(target).rpartition(".")[0] in DATA_MOVEMENT
    for t in (t for n in (*node.all_input_nodes, node) for t in value_tensors(n)):
        dtype = from_torch_dtype(t.dtype)
        strided = t.layout is torch.strided and not t.is_conj() and not t.is_neg()
        if not strided or dtype is DType.OTHER or not is_supported(t.device):
            return False
        if dtype.is_fp8 and not moves_data:
            return False
    return target not in CONVOLUTIONS or is_depthwise_call(node)


def _has_supported_numbers(node: Node, target: OpOverload) -> bool:
    """Whether the numbers among the arguments are in the range of the result's dtype."""
    args, kwargs = map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
    result = node.meta.get("val")
    return numbers_fit(target, args, kwargs, getattr(result, "dtype", None))
