"""Elementwise ops that are not one row: casts, choices, copies, complex parts, segments."""

from __future__ import annotations

import torch

from tofuse.frontends.datatypes import DataType, datatype
from tofuse.frontends.lowering import Given, Item, Lowering, Node, Number, Rule
from tofuse.frontends.ops_pointwise import (
    BINARY,
    OTHERS,
    UNARY,
    Emitter,
    apply,
    common_shape,
    operand_of,
    spread,
)
from tofuse.ir.dims import SymDim
from tofuse.ir.types import DType


def unary(name: str) -> Rule:
    def rule(low: Lowering, arg: Given) -> Item:
        return apply(low, name, UNARY[name], arg)

    return rule


def binary(name: str) -> Rule:
    def rule(low: Lowering, arg1: Given, arg2: Given) -> Item:
        return apply(low, name, BINARY[name], arg1, arg2)

    return rule


def absolute(low: Lowering, arg: Given) -> Item:
    x = low.operand(arg)
    if isinstance(x, Node) and x.dtype.is_complex:
        return _of_complex(low, x, "aten.abs.default")
    return apply(low, "abs", UNARY["abs"], arg)


def divide(low: Lowering, arg1: Given, arg2: Given) -> Item:
    """Integers truncate toward zero."""
    name = "div"
    if low.promoted([low.operand(arg1), low.operand(arg2)]).is_complex:
        name = "truediv"
    return apply(low, name, BINARY[name], arg1, arg2)


def cast(low: Lowering, arg: Given, dtype: DataType | torch.dtype) -> Item:
    target, x = datatype(dtype), low.operand(arg)
    if isinstance(x, Node):
        if x.dtype.torch == target.torch:
            return low.copy(x)
        return low.node(low.convert(x.value, x.dtype, target), target, scalar=x.scalar)
    if isinstance(x.value, SymDim):
        return low.node(low.value_of(x, target), target, scalar=True)
    return low.number(torch.tensor(x.value, dtype=target.torch).item(), target)


def copy(low: Lowering, arg: Given) -> Item:
    """The same value in a tensor of its own."""
    x = low.operand(arg)
    return low.copy(x) if isinstance(x, Node) else x


def segment(low: Lowering, arg: Given) -> Node:
    """The same value, with a border: what stands before and after is not one kernel."""
    x = low.tensor(arg)
    return low.node(low.opaque("aten.alias.default", "$0", (x.value,), x.shape, x.dtype), x.dtype)


def where(low: Lowering, arg1: Given, arg2: Given, arg3: Given) -> Item:
    test, yes, no = low.operand(arg1), low.operand(arg2), low.operand(arg3)
    dtype = low.promoted([yes, no])
    shape = common_shape(low, [test, yes, no])
    scalars = all(not isinstance(x, Node) or x.scalar for x in (test, yes, no))
    chosen = spread(low, low.value_of(test, DataType.Bool), shape, DataType.Bool)
    if dtype.ir is DType.OTHER:
        values = (chosen, low.value_of(yes, dtype), low.value_of(no, dtype))
        value = low.opaque("aten.where.self", "$0, $1, $2", values, shape, dtype)
        return low.node(value, dtype, scalar=scalars)
    a, b = (operand_of(low, x, shape, dtype) for x in (yes, no))
    value = Emitter(low.build, shape, dtype.ir).where(chosen, a, b)
    return low.node(value, dtype, scalar=scalars)


def clamp(low: Lowering, arg: Given, min: Given | None = None, max: Given | None = None) -> Item:
    """Between two bounds, either of which may be left out; nan stays."""
    result = low.operand(arg)
    if min is None and max is None:
        raise low.fail("it needs a bound")
    for bound, name in ((min, "maximum"), (max, "minimum")):
        if bound is not None:
            result = apply(low, name, BINARY[name], result, bound)
    return result


def threshold(low: Lowering, arg: Given, threshold: Given, value: Given) -> Item:
    """`value` where the operand is at most `threshold`."""
    return apply(low, "threshold", OTHERS["threshold"], arg, threshold, value)


def lerp(low: Lowering, start: Given, end: Given, weight: Given) -> Item:
    return apply(low, "lerp", OTHERS["lerp"], start, end, weight)


def addcmul(low: Lowering, arg1: Given, arg2: Given, arg3: Given, value: Given) -> Item:
    """arg1 + value * arg2 * arg3"""
    return apply(low, "addcmul", OTHERS["addcmul"], arg1, arg2, arg3, value)


def scaled(name: str) -> Rule:
    def rule(low: Lowering, arg1: Given, arg2: Given, alpha: Given) -> Item:
        return apply(low, name, OTHERS[name], arg1, arg2, alpha)

    return rule


def erfcinv(low: Lowering, arg: Given) -> Item:
    """erfcinv(x) = -ndtri(x / 2) / sqrt(2), exact also for small x."""
    half = apply(low, "mul", BINARY["mul"], arg, 0.5)
    x = low.operand(half)
    value = low.value_of(x, x.dtype)
    quantile = low.opaque("aten.special_ndtri.default", "$0", (value,), value.shape, x.dtype)
    scalar = not isinstance(x, Node) or x.scalar
    node = low.node(quantile, x.dtype, scalar=scalar)
    return apply(low, "mul", BINARY["mul"], node, -(0.5**0.5))


def logical_right_shift(low: Lowering, arg1: Given, arg2: Given) -> Item:
    """Zeros come in from the left: an arithmetic shift without the copies of the sign."""
    x, amount = low.operand(arg1), low.operand(arg2)
    shifted = apply(low, "bitwise_right_shift", BINARY["bitwise_right_shift"], x, amount)
    if not isinstance(shifted, Node):
        return shifted
    width = 8 * shifted.dtype.ir.itemsize
    if isinstance(amount, Number) and isinstance(amount.value, int):
        k = int(amount.value)
        mask: Given = -1 if k == 0 else (1 << (width - k)) - 1
    else:
        rest = apply(low, "sub", BINARY["sub"], low.number(width, shifted.dtype), amount)
        ones = low.number(-1, shifted.dtype)
        above = apply(low, "bitwise_left_shift", BINARY["bitwise_left_shift"], ones, rest)
        mask = apply(low, "bitwise_not", UNARY["bitwise_not"], above)
    return apply(low, "bitwise_and", BINARY["bitwise_and"], shifted, mask)


def real(low: Lowering, arg: Given) -> Item:
    x = low.operand(arg)
    if not x.dtype.is_complex:
        return copy(low, x)
    return _of_complex(low, x, "aten.real.default")


def imag(low: Lowering, arg: Given) -> Item:
    x = low.operand(arg)
    if not x.dtype.is_complex:
        raise low.fail(f"a {x.dtype.value} operand has no imaginary part")
    return _of_complex(low, x, "aten.imag.default")


def complex_(low: Lowering, real: Given, imag: Given) -> Item:
    parts = [low.operand(real), low.operand(imag)]
    dtype = low.promoted(parts, to_float=True)
    shape = common_shape(low, parts)
    values = tuple(low.value_of(x, dtype) for x in parts)
    out = DataType.ComplexDouble if dtype is DataType.Double else DataType.ComplexFloat
    text = "$0, $1" if values[0] is not values[1] else "$0, $0"
    made = low.opaque("aten.complex.default", text, tuple(dict.fromkeys(values)), shape, out)
    return low.node(made, out, scalar=all(not isinstance(x, Node) or x.scalar for x in parts))


def _of_complex(low: Lowering, x: Item, target: str) -> Node:
    value = low.value_of(x, x.dtype)
    out = DataType.Double if x.dtype is DataType.ComplexDouble else DataType.Float
    scalar = not isinstance(x, Node) or x.scalar
    part = low.opaque(target, "$0", (value,), value.shape, out)
    if target != "aten.abs.default":  # a view of every second number, which kernels do not read
        part = low.opaque("aten.clone.default", "$0", (part,), value.shape, out)
    return low.node(part, out, scalar=scalar)


def set_(low: Lowering, arg: Given) -> Item:
    return copy(low, arg)


MORE: dict[str, Rule] = {
    **{name: unary(name) for name in UNARY},
    **{name: binary(name) for name in BINARY},
    "abs": absolute,
    "div": divide,
    "cast": cast,
    "set": set_,
    "segment_set": segment,
    "where": where,
    "clamp": clamp,
    "threshold": threshold,
    "lerp": lerp,
    "addcmul": addcmul,
    "add_alpha": scaled("add_alpha"),
    "sub_alpha": scaled("sub_alpha"),
    "erfcinv": erfcinv,
    "logical_right_shift": logical_right_shift,
    "real": real,
    "imag": imag,
    "complex": complex_,
}
