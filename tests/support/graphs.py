"""Random well-typed graphs for property-based tests."""

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import strategies as st

from tofuse.ir.dims import Dim, contiguous_strides, product, symbol
from tofuse.ir.graph import Attr, Graph, Loc, Op, Operand, Scalar, Value
from tofuse.ir.parse_arguments import parse_arguments
from tofuse.ir.types import DType, TensorType
from tofuse.ops.result_types import infer_type

DTYPES = (DType.F32, DType.F32, DType.F32, DType.BF16, DType.F64, DType.I32, DType.BOOL)
EXTENTS: tuple[Dim, ...] = (1, 2, 3, 4, symbol("s0"), 2 * symbol("s0"))
NUMBERS = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 4.0, 0.1, 3.0)
FLOAT_BINARY = ("add", "sub", "mul", "div", "lt", "eq", "ne")  # no copysign: the sign of nan
INT_BINARY = ("add", "sub", "mul", "bitwise_and", "bitwise_or", "lt", "eq")
BOOL_BINARY = ("logical_and", "logical_or", "logical_xor", "eq")
UNARY = ("neg", "abs", "sqrt", "logical_not", "isnan", "floor")


@dataclass
class GraphBuilder:
    """A graph under construction.

    `draw` makes the choices. With `strides`, some values are column-major. `extra_steps` are added
    to the default kinds of steps.
    """

    draw: st.DrawFn
    strides: bool
    values: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    extra_steps: "tuple[Step, ...]" = ()

    def pick_value(self) -> Value:
        """Return a value, with a preference for late ones, so that chains grow."""
        k = self.draw(st.integers(1, len(self.values)))
        return self.values[-min(k, self.draw(st.integers(1, len(self.values))))]

    def pick_like(self, x: Value) -> Operand:
        """Return a value of the type of `x`, or a constant."""
        same_type = [v for v in self.values if v.type == x.type]
        if self.draw(st.booleans()):
            return self.draw(st.sampled_from(same_type))
        return Scalar(self.constant(x.dtype))

    def constant(self, dtype: DType) -> bool | int | float:
        if dtype is DType.BOOL:
            return self.draw(st.booleans())
        return self.draw(st.sampled_from(NUMBERS if dtype.is_float else (0, 1, -1, 2, 5)))

    def emit(self, kind: str, *operands: Operand, **attrs: Attr) -> Value:
        type_ = infer_type(kind, operands, attrs)
        permuted = self.strides and self.draw(st.integers(0, 19)) == 19
        strides = column_major(type_.shape) if permuted else None
        loc = Loc("dir/a model.py", 12) if self.draw(st.booleans()) else None
        value = Value(type_, f"v{len(self.ops)}", strides)
        self.values.append(value)
        self.ops.append(Op(kind, operands, (value,), tuple(attrs.items()), loc))
        return value

    def step(self) -> None:
        """Add an op of a random kind."""
        x = self.pick_value()
        grow = self.draw(st.sampled_from((*STEPS, *self.extra_steps)))
        grow(self, x)


def column_major(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    return tuple(reversed(contiguous_strides(tuple(reversed(shape)))))


def _unary(g: GraphBuilder, x: Value) -> None:
    kinds = UNARY if x.dtype.is_float else ("neg", "abs") if x.dtype.is_int else ("logical_not",)
    g.emit(g.draw(st.sampled_from(kinds)), x)


def _binary(g: GraphBuilder, x: Value) -> None:
    kinds: tuple[str, ...] = BOOL_BINARY
    if x.dtype is not DType.BOOL:
        kinds = FLOAT_BINARY if x.dtype.is_float else INT_BINARY
    operands: tuple[Operand, ...] = (x, g.pick_like(x))
    kind = g.draw(st.sampled_from(kinds))
    g.emit(kind, *(operands[::-1] if g.draw(st.booleans()) else operands))


def _where(g: GraphBuilder, x: Value) -> None:
    tests = [v for v in g.values if v.dtype is DType.BOOL and v.shape == x.shape]
    if tests:
        g.emit("where", g.draw(st.sampled_from(tests)), x, g.pick_like(x))


def _power(g: GraphBuilder, x: Value) -> None:
    if x.dtype is DType.F32:
        g.emit("pow", x, Scalar(g.draw(st.sampled_from((1.0, 2, 3.0, 0.5, -0.5, -1)))))


def _convert(g: GraphBuilder, x: Value) -> None:
    if x.dtype.is_float:
        to = g.draw(st.sampled_from((x.dtype, DType.F32, DType.F64, DType.BF16, DType.BOOL)))
    else:
        to = g.draw(st.sampled_from((x.dtype, DType.F32, DType.I32, DType.I64)))
    g.emit("convert", x, dtype=to)


def _full(g: GraphBuilder, x: Value) -> None:
    value = g.constant(x.dtype)
    g.emit("full", value=value, shape=x.shape, dtype=x.dtype)


def _reshape(g: GraphBuilder, x: Value) -> None:
    flat: tuple[Dim, ...] = (product(x.shape),)
    g.emit("reshape", x, shape=g.draw(st.sampled_from((flat, (1, *x.shape), (*x.shape, 1)))))


def _permute(g: GraphBuilder, x: Value) -> None:
    g.emit("permute", x, dims=tuple(g.draw(st.permutations(range(len(x.shape))))))


def _broadcast(g: GraphBuilder, x: Value) -> None:
    if len(x.shape) < 4:
        at = g.draw(st.integers(0, len(x.shape)))
        shape = (*x.shape[:at], g.draw(st.sampled_from((2, 3))), *x.shape[at:])
        dims = tuple(d for d in range(len(shape)) if d != at)
        g.emit("broadcast", x, shape=shape, dims=dims)


def _slice(g: GraphBuilder, x: Value) -> None:
    start, step, shape = [], [], []
    for extent in x.shape:
        known = extent if isinstance(extent, int) else 2
        if not isinstance(extent, int) and g.draw(st.booleans()):
            parts: tuple[int, int, Dim] = (0, 1, extent)
        elif g.draw(st.booleans()):
            first = g.draw(st.integers(0, known - 1))
            parts = (first, 1, g.draw(st.integers(1, known - first)))
        else:
            parts = (known - 1, -1, known)
        start.append(parts[0])
        step.append(parts[1])
        shape.append(parts[2])
    g.emit("slice", x, start=tuple(start), step=tuple(step), shape=tuple(shape), dtype=x.dtype)


def _cat(g: GraphBuilder, x: Value) -> None:
    if x.shape:
        alike = [v for v in g.values if v.type == x.type]
        parts = g.draw(st.lists(st.sampled_from(alike), min_size=1, max_size=3))
        g.emit("cat", *parts, dim=g.draw(st.integers(0, len(x.shape) - 1)))


def _reduce(g: GraphBuilder, x: Value) -> None:
    if x.shape and x.dtype is not DType.BOOL:
        dims = tuple(sorted(g.draw(st.sets(st.integers(0, len(x.shape) - 1), min_size=1))))
        wide = DType.I64 if x.dtype.is_int else x.dtype
        kind = g.draw(st.sampled_from(("sum", "amax", "amin")))
        g.emit(kind, x, dims=dims, dtype=wide if kind == "sum" else x.dtype)


def _cumsum(g: GraphBuilder, x: Value) -> None:
    if x.dtype is DType.F32 and x.shape:
        attrs: dict[str, Attr] = {"target": "aten.neg.default", "args": parse_arguments("$0")}
        op = Op("opaque", (x,), (Value(x.type, f"v{len(g.ops)}"),), tuple(attrs.items()))
        g.values.append(op.result)
        g.ops.append(op)


STEPS = (
    _unary,
    _binary,
    _binary,
    _binary,
    _where,
    _power,
    _convert,
    _full,
    _reshape,
    _permute,
    _broadcast,
    _slice,
    _cat,
    _reduce,
    _cumsum,
)


@st.composite
def graphs(
    draw: st.DrawFn, max_ops: int = 14, strides: bool = True, extra_steps: "tuple[Step, ...]" = ()
) -> Graph:
    """Draw a graph that the verifier accepts; every op may be used by any later one."""
    g = GraphBuilder(draw, strides, extra_steps=extra_steps)
    for k in range(draw(st.integers(1, 3))):
        shape = tuple(draw(st.lists(st.sampled_from(EXTENTS), max_size=3)))
        g.values.append(Value(TensorType(shape, draw(st.sampled_from(DTYPES))), f"x{k}"))
    inputs = tuple(g.values)
    for _ in range(draw(st.integers(1, max_ops))):
        g.step()
    outputs = draw(st.lists(st.sampled_from([*g.values, None]), min_size=1, max_size=4))
    return Graph(inputs, tuple(g.ops), (*outputs, g.values[-1]), draw(st.sampled_from(NAMES)))


Step = Callable[[GraphBuilder, Value], None]
NAMES = ("graph", "forward", "model.layer_1")
