"""Pointwise ops: those of the elementwise table, and casts, where, copies, complex parts."""

from __future__ import annotations

from inspect import Parameter, Signature

import torch

from tofuse.frontends.datatypes import DataType, datatype
from tofuse.frontends.elementwise_table import (
    BINARY,
    ELEMENTWISE,
    UNARY,
    broadcast_shape,
    broadcast_to,
    elementwise,
    typed_operand,
)
from tofuse.frontends.items import Item, Node, Number, OperandLike, Rule, is_scalar
from tofuse.frontends.lowering import Lowering
from tofuse.ir.dims import SymDim
from tofuse.ir.types import DType, TensorType


def from_table(name: str, *parameters: str) -> Rule:
    """Return the rule of an op of the elementwise table with parameters of these names."""

    def rule(low: Lowering, **arguments: OperandLike) -> Item:
        return elementwise(low, name, *arguments.values())

    kind = Parameter.POSITIONAL_OR_KEYWORD
    signature = [Parameter(p, kind, annotation="OperandLike") for p in ("low", *parameters)]
    rule.__doc__ = ELEMENTWISE[name].emit.__doc__
    rule.__signature__ = Signature(signature, return_annotation="Item")  # type: ignore[attr-defined]
    return rule


def absolute(low: Lowering, arg: OperandLike) -> Item:
    x = low.operand(arg)
    if isinstance(x, Node) and x.dtype.is_complex:
        return _complex_part(low, x, "aten.abs.default")
    return elementwise(low, "abs", arg)


def divide(low: Lowering, arg1: OperandLike, arg2: OperandLike) -> Item:
    """Divide; integer division truncates toward zero."""
    name = "div"
    if low.promoted_type([low.operand(arg1), low.operand(arg2)]).is_complex:
        name = "truediv"
    return elementwise(low, name, arg1, arg2)


def cast(low: Lowering, arg: OperandLike, dtype: DataType | torch.dtype) -> Item:
    target, x = datatype(dtype), low.operand(arg)
    if isinstance(x, Node) and x.dtype.torch == target.torch:
        return low.copy(x)
    if isinstance(x, Number) and isinstance(x.value, SymDim) and target.torch is torch.int64:
        return Number(x.value, target)
    if isinstance(x, Node) or isinstance(x.value, SymDim):
        return low.cast(x, target, scalar=is_scalar(x))
    return Number(torch.tensor(x.value, dtype=target.torch).item(), target)


def copy(low: Lowering, arg: OperandLike) -> Item:
    """Copy a tensor."""
    x = low.operand(arg)
    return low.copy(x) if isinstance(x, Node) else x


def segment(low: Lowering, arg: OperandLike) -> Node:
    """Return the same value and prevent fusion across it."""
    x = low.tensor(arg)
    return low.call("aten.alias.default", (x.value,), x.shape, x.dtype)


def where(low: Lowering, arg1: OperandLike, arg2: OperandLike, arg3: OperandLike) -> Item:
    """Select elements of `arg2` where the condition holds, else of `arg3`; half types stay."""
    test, yes, no = low.operand(arg1), low.operand(arg2), low.operand(arg3)
    if test.dtype is not DataType.Bool:
        raise low.error(f"the condition must have type Bool, not {test.dtype.value}")
    dtype = low.promoted_type([yes, no], keep_narrow=True)
    if isinstance(test, Number) and isinstance(yes, Number) and isinstance(no, Number):
        return Number(yes.value if test.value else no.value, dtype)
    shape = broadcast_shape(low, [test, yes, no])
    scalars = all(map(is_scalar, (test, yes, no)))
    chosen = broadcast_to(low, low.value_of(test, DataType.Bool), shape, DataType.Bool)
    if dtype.ir is DType.OTHER:
        values = (chosen, low.value_of(yes, dtype), low.value_of(no, dtype))
        return low.call("aten.where.self", values, shape, dtype, scalar=scalars)
    a, b = (typed_operand(low, x, shape, dtype) for x in (yes, no))
    value = low.builder.where(chosen, a, b, TensorType(shape, dtype.ir))
    return Node(value, dtype, scalar=scalars)


def clamp(
    low: Lowering, arg: OperandLike, min: OperandLike | None = None, max: OperandLike | None = None
) -> Item:
    """Clamp between two bounds, one of which may be omitted; nan stays nan."""
    result = low.operand(arg)
    if min is None and max is None:
        raise low.error("give min, max, or both")
    for bound, name in ((min, "maximum"), (max, "minimum")):
        if bound is not None:
            result = elementwise(low, name, result, bound)
    return result


def erfcinv(low: Lowering, arg: OperandLike) -> Item:
    """Return -ndtri(x / 2) / sqrt(2), which is accurate for small x."""
    half = elementwise(low, "mul", arg, 0.5)
    x = low.operand(half)
    value = low.value_of(x, x.dtype)
    target, shape = "aten.special_ndtri.default", value.shape
    node = low.call(target, (value,), shape, x.dtype, scalar=is_scalar(x))
    return elementwise(low, "mul", node, -(0.5**0.5))


def logical_right_shift(low: Lowering, arg1: OperandLike, arg2: OperandLike) -> Item:
    """Shift right and fill with zeros: an arithmetic shift with the sign bits masked out."""
    x, amount = low.operand(arg1), low.operand(arg2)
    shifted = elementwise(low, "bitwise_right_shift", x, amount)
    if not isinstance(shifted, Node):
        return shifted
    width = 8 * shifted.dtype.ir.itemsize
    if isinstance(amount, Number) and isinstance(amount.value, int):
        k = int(amount.value)
        mask: OperandLike = -1 if k == 0 else (1 << (width - k)) - 1
    else:
        rest = elementwise(low, "sub", Number(width, shifted.dtype), amount)
        ones = Number(-1, shifted.dtype)
        above = elementwise(low, "bitwise_left_shift", ones, rest)
        mask = elementwise(low, "bitwise_not", above)
    return elementwise(low, "bitwise_and", shifted, mask)


def real(low: Lowering, arg: OperandLike) -> Item:
    x = low.operand(arg)
    if not x.dtype.is_complex:
        return copy(low, x)
    return _complex_part(low, x, "aten.real.default")


def imag(low: Lowering, arg: OperandLike) -> Item:
    x = low.operand(arg)
    if not x.dtype.is_complex:
        raise low.error(f"a {x.dtype.value} operand has no imaginary part")
    return _complex_part(low, x, "aten.imag.default")


def complex_(low: Lowering, real: OperandLike, imag: OperandLike) -> Item:
    parts = [low.operand(real), low.operand(imag)]
    dtype = low.promoted_type(parts, to_float=True)
    if dtype.is_complex:
        raise low.error("the parts of a complex number must be real")
    shape = broadcast_shape(low, parts)
    values = tuple(low.value_of(x, dtype) for x in parts)
    out = DataType.ComplexDouble if dtype is DataType.Double else DataType.ComplexFloat
    return low.call("aten.complex.default", values, shape, out, scalar=all(map(is_scalar, parts)))


def _complex_part(low: Lowering, x: Item, target: str) -> Node:
    value = low.value_of(x, x.dtype)
    out = DataType.Double if x.dtype is DataType.ComplexDouble else DataType.Float
    part = low.call(target, (value,), value.shape, out, scalar=is_scalar(x))
    if target == "aten.abs.default":
        return part
    # a view with stride 2 that kernels cannot read
    return low.call("aten.clone.default", (part.value,), value.shape, out, scalar=is_scalar(x))


POINTWISE: dict[str, Rule] = {
    **{name: from_table(name, "arg") for name in UNARY},
    **{name: from_table(name, "arg1", "arg2") for name in BINARY},
    "threshold": from_table("threshold", "arg", "threshold", "value"),
    "lerp": from_table("lerp", "start", "end", "weight"),
    "addcmul": from_table("addcmul", "arg1", "arg2", "arg3", "value"),
    "add_alpha": from_table("add_alpha", "arg1", "arg2", "alpha"),
    "sub_alpha": from_table("sub_alpha", "arg1", "arg2", "alpha"),
    "abs": absolute,
    "div": divide,
    "set": copy,
    "segment_set": segment,
    "where": where,
    "clamp": clamp,
    "erfcinv": erfcinv,
    "logical_right_shift": logical_right_shift,
    "real": real,
    "imag": imag,
    "complex": complex_,
}
