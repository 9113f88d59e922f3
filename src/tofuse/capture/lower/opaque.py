"""The lowering of a call to an `opaque` op, which PyTorch's own operator runs."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

import torch
from torch.fx import Node

from tofuse.analysis.alias import starts_collective
from tofuse.capture.fx.aliases import is_impure
from tofuse.capture.fx.node_tensors import value_tensors
from tofuse.capture.lower.builder import Builder
from tofuse.capture.lower.call import Argument, AtenCall
from tofuse.capture.lower.effect_tokens import EFFECT_KEY
from tofuse.errors import CaptureError
from tofuse.ir.call_arguments import (
    CallArgument,
    CallArguments,
    Device,
    OperandRef,
    TorchConstant,
)
from tofuse.ir.dims import SymDim
from tofuse.ir.graph import Attr, Op, Value
from tofuse.ir.size_expression import SizeExpression
from tofuse.torch_internals.operators import OpOverload


def lower_to_opaque(
    call: AtenCall,
    args: list[Argument],
    kwargs: dict[str, Argument],
    after: Sequence[Argument] = (),
) -> Value | list[Value | None]:
    """Append the op; return its result, or a list of results with None for unused ones.

    `after` are values that the op depends on beside its arguments.
    """
    operands, arguments = call_arguments(args, kwargs, after)
    attrs: dict[str, Attr] = {"target": str(call.node.target), "args": arguments}
    value = call.node.meta.get("val")
    effect = {"effect": True} if is_effectful(call.node) else {}
    if may_return_other_shapes(call.node.target):
        effect["check_shapes"] = True
    if any(t.layout is not torch.strided for t in value_tensors(call.node)):
        effect["strided"] = False
    if isinstance(value, torch.Tensor):
        result = _result(call, value, call.node.name)
        attrs |= {"shape": result.shape, "dtype": result.dtype, **effect}
        _append(call.build, operands, (result,), attrs)
        return result
    if value is None and (effect or call.node.is_impure()):  # such as an assertion
        _append(call.build, operands, (), attrs | {"effect": True})
        return []
    if not isinstance(value, (list, tuple)) or not value:
        raise CaptureError(f"{call.node.target} returns no tensor")
    tensors = tuple(k for k, v in enumerate(value) if isinstance(v, torch.Tensor))
    read = {u.args[1] for u in call.node.users if u.target is operator.getitem}
    picks = tuple(k for k in tensors if k in read)
    if not picks and is_effectful(call.node):
        picks = tensors[:1]
    results = {k: _result(call, value[k], f"{call.node.name}_r{k}") for k in picks}
    if results:
        _append(call.build, operands, tuple(results.values()), attrs | {"picks": picks, **effect})
    return [results.get(k) for k in range(len(value))]


def is_effectful(node: Node) -> bool:
    """Whether a call must stay without users, and must not be merged with an equal call."""
    if not isinstance(node.target, OpOverload) or starts_collective(str(node.target)):
        return True
    return EFFECT_KEY in node.meta or is_impure(node)


def may_return_other_shapes(target: object) -> bool:
    """Return whether the shapes that torch traced may differ from an operator's at run time.

    The shapes of `nonzero` and the like depend on data; a program may promise what they are. What
    a custom operator says of its shapes may be wrong.
    """
    if not isinstance(target, OpOverload):
        return True
    return torch.Tag.dynamic_output_shape in target.tags or target.namespace not in TORCH_NAMESPACES


def _result(call: AtenCall, tensor: object, name: str) -> Value:
    assert isinstance(tensor, torch.Tensor)
    type_ = call.type_of(tensor)
    strided = tensor.layout is torch.strided
    return Value(type_, name, call.build.sizes.layout(tensor) if strided else None)


def _append(
    build: Builder, operands: tuple[Value, ...], results: tuple[Value, ...], attrs: dict[str, Attr]
) -> None:
    build.ops.append(Op("opaque", operands, results, tuple(attrs.items()), build.loc))


def call_arguments(
    args: Sequence[Argument], kwargs: Mapping[str, Argument], after: Sequence[Argument] = ()
) -> tuple[tuple[Value, ...], CallArguments]:
    """Return the distinct tensors of a call, in order, and its arguments, which refer to them."""
    operands: dict[Value, OperandRef] = {}
    positional = tuple(_argument(a, operands) for a in args)
    keyword = tuple((k, _argument(a, operands)) for k, a in kwargs.items())
    leaves = (v for a in after for v in (a if isinstance(a, (list, tuple)) else (a,)))
    references = tuple(_operand(v, operands) for v in leaves if isinstance(v, Value))
    return tuple(operands), CallArguments(positional, keyword, references)


def _operand(value: Value, operands: dict[Value, OperandRef]) -> OperandRef:
    return operands.setdefault(value, OperandRef(len(operands)))


def _argument(value: Argument, operands: dict[Value, OperandRef]) -> CallArgument:
    match value:
        case Value():
            return _operand(value, operands)
        case list() | tuple():
            return tuple(_argument(v, operands) for v in value)
        case torch.device():
            return Device(str(value))
        case torch.dtype() | torch.layout() | torch.memory_format():
            return TorchConstant(str(value).removeprefix("torch."))
        case SymDim() | SizeExpression() | bool() | int() | float() | complex() | str() | None:
            return value
        case _:
            raise CaptureError(f"an argument of type {type(value).__name__} is not supported")


TORCH_NAMESPACES = frozenset(("aten", "prims", "tofuse"))
