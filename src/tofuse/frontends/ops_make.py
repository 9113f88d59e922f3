"""Ops that make tensors: ranges, constants, random numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from tofuse.frontends.datatypes import DataType, datatype
from tofuse.frontends.lowering import Draw, Given, Item, Lowered, Lowering, Node, Number, Rule
from tofuse.frontends.ops_pointwise import BINARY, UNARY, apply
from tofuse.ir.dims import Dim, SymDim
from tofuse.ir.graph import Attr, Scalar, Value
from tofuse.ir.types import DType, TensorType

Shape = Lowered | Sequence[Given]


def iota(
    low: Lowering,
    length: Given,
    start: Given | None = None,
    step: Given | None = None,
    dtype: DataType | torch.dtype = DataType.Int,
) -> Node:
    """start, start + step, ... in `length` elements."""
    target, count = datatype(dtype), low.dim(length, "length")
    first, by = low.operand(0 if start is None else start), low.operand(1 if step is None else step)
    if isinstance(count, int) and count < 0:
        raise low.fail(f"length is {count}")
    if target.is_complex or target is DataType.Bool:
        raise low.fail(f"a range of {target.value} elements")
    if isinstance(by, Number) and by.value == 0:
        raise low.fail("step is 0")
    whole = [x.value for x in (first, by) if isinstance(x, Number) and _is_whole(x.value)]
    if len(whole) == 2 and target.is_int and target.ir is not DType.OTHER:
        begin, jump = (x if isinstance(x, SymDim) else int(_real(x)) for x in whole)
        return low.node(_line(low, count, begin, jump, target.ir), target)
    steps = low.node(_line(low, count, 0, 1, DType.I64), DataType.Int)
    wide = low.node(low.convert(steps.value, DataType.Int, target), target)
    made = apply(low, "mul", BINARY["mul"], wide, by)
    made = apply(low, "add", BINARY["add"], made, first)
    assert isinstance(made, Node)
    return low.node(low.convert(made.value, made.dtype, target), target)


def _line(low: Lowering, count: Dim, start: Dim, step: Dim, dtype: DType) -> Value:
    attrs: dict[str, Attr] = {"start": start, "step": step, "shape": (count,), "dtype": dtype}
    return low.build.emit("iota", (), attrs)


def _is_whole(value: bool | int | float | complex | SymDim) -> bool:
    if isinstance(value, SymDim):
        return True
    return not isinstance(value, complex) and float(value) == int(value)


def _real(value: bool | int | float | complex | SymDim) -> float:
    assert isinstance(value, (int, float))
    return value


def full(
    low: Lowering, shape: Shape, fill_value: Given, dtype: DataType | torch.dtype = DataType.Null
) -> Node:
    value, extents = low.operand(fill_value), low.dims(shape)
    target = datatype(dtype)
    target = value.dtype if target is DataType.Null else target
    if isinstance(value, Node) and value.rank:
        raise low.fail(f"fill_value is a tensor of rank {value.rank}")
    if any(isinstance(e, int) and e < 0 for e in extents):
        raise low.fail("the shape has a negative size")
    if isinstance(value, Number) and target.ir is not DType.OTHER:
        if isinstance(value.value, complex):
            raise low.fail(f"a complex number does not fit {target.value}")
        held = value.value
        if not isinstance(held, SymDim):
            held = torch.tensor(held).to(target.torch).item()
        assert not isinstance(held, complex)
        return low.node(low.build.full(extents, Scalar(held), target.ir), target)
    filled = low.build.broadcast(low.value_of(value, target), extents, ())
    return low.node(filled, target)


def uniform(
    low: Lowering,
    minval: Given,
    maxval: Given,
    shape: Shape,
    *,
    rng_seed: Given | None = None,
    rng_offset: Given | None = None,
    dtype: DataType | torch.dtype = DataType.Float,
) -> Node:
    """In [minval, maxval); with seed and offset the same on every run."""
    seed = _seed(low, rng_seed, rng_offset)
    unit = _unit(low, seed, low.dims(shape), _float_type(low, datatype(dtype)))
    length = apply(low, "sub", BINARY["sub"], maxval, minval)
    return _scaled(low, unit, length, minval, datatype(dtype))


def normal(
    low: Lowering,
    mean: Given,
    std: Given,
    shape: Shape,
    *,
    rng_seed: Given | None = None,
    rng_offset: Given | None = None,
    dtype: DataType | torch.dtype = DataType.Float,
) -> Node:
    """Of this mean and deviation; with seed and offset the same on every run."""
    seed = _seed(low, rng_seed, rng_offset)
    bell = _bell(low, seed, low.dims(shape), _float_type(low, datatype(dtype)))
    return _scaled(low, bell, std, mean, datatype(dtype))


def rand_like(
    low: Lowering,
    arg: Given,
    *,
    rng_seed: Given | None = None,
    rng_offset: Given | None = None,
) -> Node:
    x = low.tensor(arg)
    dtype = _float_type(low, x.dtype)
    unit = _unit(low, _seed(low, rng_seed, rng_offset), x.shape, dtype)
    return low.node(low.convert(unit.value, dtype, x.dtype), x.dtype)


def randn_like(
    low: Lowering,
    arg: Given,
    *,
    rng_seed: Given | None = None,
    rng_offset: Given | None = None,
) -> Node:
    x = low.tensor(arg)
    dtype = _float_type(low, x.dtype)
    bell = _bell(low, _seed(low, rng_seed, rng_offset), x.shape, dtype)
    return low.node(low.convert(bell.value, dtype, x.dtype), x.dtype)


def _float_type(low: Lowering, dtype: DataType) -> DataType:
    """The type random numbers are computed in."""
    if not dtype.is_float:
        raise low.fail(f"random numbers of type {dtype.value}")
    return dtype if dtype is DataType.Double else DataType.Float


def _scaled(low: Lowering, x: Node, factor: Given, shift: Given, dtype: DataType) -> Node:
    made: Item = apply(low, "mul", BINARY["mul"], x, factor)
    made = apply(low, "add", BINARY["add"], made, shift)
    assert isinstance(made, Node)
    return low.node(low.convert(made.value, made.dtype, dtype), dtype)


def _bell(low: Lowering, draw: Draw, shape: tuple[Dim, ...], dtype: DataType) -> Node:
    """Box and Muller, 1958. One minus a uniform lies in (0, 1], so its logarithm is finite."""
    rest = apply(low, "sub", BINARY["sub"], 1.0, _unit(low, draw, shape, dtype))
    energy = apply(low, "mul", BINARY["mul"], apply(low, "log", UNARY["log"], rest), -2.0)
    radius = apply(low, "sqrt", UNARY["sqrt"], energy)
    angle = apply(low, "mul", BINARY["mul"], _unit(low, draw, shape, dtype), 2.0 * math.pi)
    made = apply(low, "mul", BINARY["mul"], radius, apply(low, "cos", UNARY["cos"], angle))
    assert isinstance(made, Node)
    return made


def _unit(low: Lowering, draw: Draw, shape: tuple[Dim, ...], dtype: DataType) -> Node:
    """Uniform in [0, 1): 24 random bits, 48 for Double."""
    high = _stream(low, draw, shape)
    if dtype is not DataType.Double:
        return low.node(high, DataType.Float)
    build, fine = low.build, _stream(low, draw, shape)
    wide = [build.convert(v, DType.F64) for v in (high, fine)]
    scaled = build.emit("mul", (wide[1], Scalar(2.0**-24)), {})
    return low.node(build.emit("add", (wide[0], scaled), {}), DataType.Double)


def _stream(low: Lowering, draw: Draw, shape: tuple[Dim, ...]) -> Value:
    attrs: dict[str, Attr] = {"stream": draw.streams, "shape": shape, "dtype": DType.F32}
    draw.streams += 1
    return low.build.emit("uniform", (draw.seed.value,), attrs)


def _seed(low: Lowering, seed: Given | None, offset: Given | None) -> Draw:
    """Two words: those given, or two drawn from torch's generator once a run."""
    if (seed is None) != (offset is None):
        raise low.fail("rng_seed and rng_offset belong together")
    if seed is None or offset is None:
        if low.drawn is None:
            words = low.opaque("tofuse.seed.default", "", (), (2,), DataType.Int, effect=True)
            low.drawn = Draw(low.node(words, DataType.Int))
        return low.drawn
    given = [low.operand(x) for x in (seed, offset)]
    fixed = [x.value for x in given if isinstance(x, Number) and isinstance(x.value, int)]
    if len(fixed) == 2:
        value = Value(TensorType((2,), DType.I64), f"seed{len(low.constants)}")
        held = low.node(value, DataType.Int)
        low.constants.append((held, torch.tensor([_signed(w) for w in fixed])))
        return Draw(held)
    parts = tuple(low.build.reshape(low.value_of(x, DataType.Int), ()) for x in given)
    stacked = low.opaque("aten.stack.default", "[$0, $1]", parts, (2,), DataType.Int)
    return Draw(low.node(stacked, DataType.Int))


def _signed(word: int) -> int:
    """The same 64 bits as a signed number."""
    word &= 2**64 - 1
    return word - 2**64 if word >= 2**63 else word


MAKE: dict[str, Rule] = {
    "iota": iota,
    "full": full,
    "uniform": uniform,
    "normal": normal,
    "rand_like": rand_like,
    "randn_like": randn_like,
}
