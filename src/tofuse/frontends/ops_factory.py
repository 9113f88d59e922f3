"""Factory ops: ranges, constants, random numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch

from tofuse.frontends.datatypes import DataType, datatype
from tofuse.frontends.elementwise_table import elementwise, elementwise_node
from tofuse.frontends.items import Item, Node, Number, OperandLike, RngState, Rule, Shape
from tofuse.frontends.lowering import Lowering
from tofuse.ir.dims import Dim, SymDim
from tofuse.ir.graph import Attr, Scalar, Value
from tofuse.ir.types import DType, TensorType


def iota(
    low: Lowering,
    length: OperandLike,
    start: OperandLike | None = None,
    step: OperandLike | None = None,
    dtype: DataType | torch.dtype = DataType.Int,
) -> Node:
    """Return start, start + step, ... with `length` elements."""
    target, count = datatype(dtype), low.dim(length, "length")
    first = low.operand(0 if start is None else start)
    increment = low.operand(1 if step is None else step)
    low.require_at_least(count, 0, f"length is {count}, but must not be negative")
    if target.is_complex or target is DataType.Bool:
        raise low.error(f"it cannot make {target.value} elements")
    for number, what in ((first, "start"), (increment, "step")):
        _require_fits(low, number, target, what)
    if isinstance(increment, Number) and increment.value == 0:
        raise low.error("step must not be 0")
    begin, jump = _as_integer(first), _as_integer(increment)
    if begin is not None and jump is not None and target.is_int and target.ir is not DType.OTHER:
        return Node(low.builder.iota(count, begin, jump, target.ir), target)
    steps = Node(low.builder.iota(count, 0, 1, DType.I64), DataType.Int)
    return _scale_and_shift(low, low.cast(steps, target), increment, first, target)


def _as_integer(x: Item) -> Dim | None:
    """Return an integer constant or a size; None for any other item."""
    if not isinstance(x, Number) or isinstance(x.value, complex):
        return None
    if isinstance(x.value, SymDim):
        return x.value
    return int(x.value) if x.value == int(x.value) else None


def _require_fits(low: Lowering, x: Item, dtype: DataType, what: str) -> None:
    """Raise DefinitionError for a number that is not finite, or a float where integers are made."""
    if isinstance(x, Number) and isinstance(x.value, float) and not math.isfinite(x.value):
        raise low.error(f"{what} must be a finite number")
    if x.dtype.is_complex or (x.dtype.is_float and not dtype.is_float):
        raise low.error(f"{what} has type {x.dtype.value}, but the elements are {dtype.value}")


def full(
    low: Lowering,
    shape: Shape,
    fill_value: OperandLike,
    dtype: DataType | torch.dtype = DataType.Null,
) -> Node:
    value, extents = low.operand(fill_value), low.sizes(shape)
    target = datatype(dtype)
    target = value.dtype if target is DataType.Null else target
    if isinstance(value, Node) and value.rank:
        raise low.error(f"fill_value must be a scalar, not a tensor of rank {value.rank}")
    if isinstance(value, Number) and target.ir is not DType.OTHER:
        if isinstance(value.value, complex):
            raise low.error(f"a complex fill_value cannot be converted to {target.value}")
        fill = value.value
        if isinstance(fill, float) and not math.isfinite(fill) and not target.is_float:
            raise low.error(f"{fill} cannot be converted to {target.value}")
        if not isinstance(fill, SymDim):
            fill = torch.tensor(fill).to(target.torch).item()
        assert not isinstance(fill, complex)
        return Node(low.builder.full(extents, Scalar(fill), target.ir), target)
    filled = low.builder.broadcast(low.value_of(value, target), extents, ())
    return Node(filled, target)


def uniform(
    low: Lowering,
    minval: OperandLike,
    maxval: OperandLike,
    shape: Shape,
    *,
    rng_seed: OperandLike | None = None,
    rng_offset: OperandLike | None = None,
    dtype: DataType | torch.dtype = DataType.Float,
) -> Node:
    """Return uniform numbers in [minval, maxval); with seed and offset, the same in every run."""
    seed = rng_state(low, rng_seed, rng_offset)
    unit = standard_uniform(low, seed, low.sizes(shape), _float_type(low, datatype(dtype)))
    length = elementwise(low, "sub", maxval, minval)
    return _scale_and_shift(low, unit, length, minval, datatype(dtype))


def normal(
    low: Lowering,
    mean: OperandLike,
    std: OperandLike,
    shape: Shape,
    *,
    rng_seed: OperandLike | None = None,
    rng_offset: OperandLike | None = None,
    dtype: DataType | torch.dtype = DataType.Float,
) -> Node:
    """Return normal numbers; with seed and offset, the same in every run."""
    seed = rng_state(low, rng_seed, rng_offset)
    standard = _standard_normal(low, seed, low.sizes(shape), _float_type(low, datatype(dtype)))
    return _scale_and_shift(low, standard, std, mean, datatype(dtype))


def like(draw: Callable[[Lowering, RngState, tuple[Dim, ...], DataType], Node]) -> Rule:
    """Return the rule of random numbers with the shape and type of a tensor."""

    def rule(
        low: Lowering,
        arg: OperandLike,
        *,
        rng_seed: OperandLike | None = None,
        rng_offset: OperandLike | None = None,
    ) -> Node:
        x = low.tensor(arg)
        dtype = _float_type(low, x.dtype)
        return low.cast(draw(low, rng_state(low, rng_seed, rng_offset), x.shape, dtype), x.dtype)

    return rule


def _float_type(low: Lowering, dtype: DataType) -> DataType:
    """Return the type that random numbers are computed in."""
    if not dtype.is_float:
        raise low.error(f"it cannot make random numbers of type {dtype.value}")
    return dtype if dtype is DataType.Double else DataType.Float


def _scale_and_shift(
    low: Lowering, x: Node, factor: OperandLike, shift: OperandLike, dtype: DataType
) -> Node:
    return low.cast(elementwise(low, "add", elementwise(low, "mul", x, factor), shift), dtype)


def _standard_normal(low: Lowering, rng: RngState, shape: tuple[Dim, ...], dtype: DataType) -> Node:
    """Return standard normal numbers (Box and Muller, 1958).

    One minus a uniform number is in (0, 1], so its logarithm is finite.
    """
    op = partial(elementwise_node, low)
    rest = op("sub", 1.0, standard_uniform(low, rng, shape, dtype))
    radius = op("sqrt", op("mul", op("log", rest), -2.0))
    angle = op("mul", standard_uniform(low, rng, shape, dtype), 2.0 * math.pi)
    return op("mul", radius, op("cos", angle))


def standard_uniform(low: Lowering, rng: RngState, shape: tuple[Dim, ...], dtype: DataType) -> Node:
    """Return uniform numbers in [0, 1) with 24 random bits, 48 for Double."""
    high = _draw_stream(low, rng, shape)
    if dtype is not DataType.Double:
        return Node(high, DataType.Float)
    build, fine = low.builder, _draw_stream(low, rng, shape)
    wide = [build.convert(v, DType.F64) for v in (high, fine)]
    scaled = build.emit("mul", (wide[1], Scalar(2.0**-24)), {})
    return Node(build.emit("add", (wide[0], scaled), {}), DataType.Double)


def _draw_stream(low: Lowering, rng: RngState, shape: tuple[Dim, ...]) -> Value:
    attrs: dict[str, Attr] = {"stream": rng.streams, "shape": shape, "dtype": DType.F32}
    rng.streams += 1
    return low.builder.emit("uniform", (rng.seed.value,), attrs)


def rng_state(low: Lowering, seed: OperandLike | None, offset: OperandLike | None) -> RngState:
    """Return the seed words: the arguments, or two words from torch's generator in each run."""
    if (seed is None) != (offset is None):
        raise low.error("rng_seed and rng_offset must be given together")
    if seed is None or offset is None:
        if low.default_rng is None:
            low.default_rng = RngState(low.draw_seed())
        return low.default_rng
    given = [low.operand(x) for x in (seed, offset)]
    if not all(x.dtype.is_int for x in given):
        raise low.error("rng_seed and rng_offset must be integers")
    fixed = [x.value for x in given if isinstance(x, Number) and isinstance(x.value, int)]
    if len(fixed) == 2:
        value = Value(TensorType((2,), DType.I64), f"seed{len(low.constants)}")
        words = Node(value, DataType.Int)
        low.constants.append((words, torch.tensor([_as_signed(w) for w in fixed])))
        return RngState(words)
    parts = tuple(low.builder.reshape(low.value_of(x, DataType.Int), ()) for x in given)
    return RngState(low.call("aten.stack.default", (parts,), (2,), DataType.Int))


def _as_signed(word: int) -> int:
    """Reinterpret 64 bits as a signed integer."""
    word &= 2**64 - 1
    return word - 2**64 if word >= 2**63 else word


FACTORY: dict[str, Rule] = {
    "iota": iota,
    "full": full,
    "uniform": uniform,
    "normal": normal,
    "rand_like": like(standard_uniform),
    "randn_like": like(_standard_normal),
}
