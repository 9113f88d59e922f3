"""Lower a definition to a Graph, and collect the size equalities that its ops require."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from tofuse.capture.fx.sizes import SymbolicSizes
from tofuse.capture.lower.builder import Builder
from tofuse.capture.lower.call import Argument
from tofuse.capture.lower.opaque import call_arguments
from tofuse.errors import DefinitionError
from tofuse.frontends.datatypes import DataType, number_type, promote
from tofuse.frontends.input_layouts import StridePattern
from tofuse.frontends.items import (
    Item,
    Node,
    Number,
    OperandLike,
    RngState,
    Shape,
    describe,
    located,
    show_shape,
)
from tofuse.ir.dims import Dim, SymDim, product, substitute_dim, symbol, symbols_of
from tofuse.ir.graph import Attr, Loc, Op, Scalar, Value
from tofuse.ir.size_expression import (
    ArgumentSize,
    SizeSource,
    SizeTerm,
    apply_function,
    size_symbols,
)
from tofuse.ir.types import HOST, DType, TensorType, is_host
from tofuse.ops.reference import from_torch_dtype

SEED = "tofuse.seed.default"


@dataclass(frozen=True)
class SizeEquality:
    """A symbol stands for `size`; a run checks it. `reason` names the op and the user's line."""

    symbol: str
    size: Dim
    reason: str


class SizesMustBeEqual(Exception):
    """An op needs an equality that the lowering lacks: the definition is lowered again with it."""

    def __init__(self, equality: SizeEquality) -> None:
        self.equality = equality


@dataclass
class Lowering:
    """One lowering of a definition to a graph.

    `static_sizes` gives symbols the sizes of one call; `stride_patterns` holds the layout of each
    input, None for row-major. `equalities` holds the sizes that ops require to be equal, found in
    earlier lowerings. `specialized` collects the symbols that must be static in another
    lowering, because equality of sizes cannot be proved otherwise; `zero_specialized` those that
    must be static where they are 0.
    """

    static_sizes: Mapping[str, int] = field(default_factory=dict)
    stride_patterns: Sequence[StridePattern | None] = ()
    device: str = HOST
    equalities: tuple[SizeEquality, ...] = ()
    builder: Builder = field(default_factory=lambda: Builder(SymbolicSizes()))
    arguments: list[Item] = field(default_factory=list)
    constants: list[tuple[Node, torch.Tensor]] = field(default_factory=list)
    # dense strides in the stride order that the definition gives an input
    declared_strides: dict[Value, tuple[Dim, ...]] = field(default_factory=dict)
    symbols: dict[str, SizeSource] = field(default_factory=dict)
    specialized: dict[str, ArgumentSize] = field(default_factory=dict)
    zero_specialized: dict[str, ArgumentSize] = field(default_factory=dict)
    # numbers, the least that each may be, and what to say otherwise; a run checks them
    minima: list[tuple[Dim, int, str]] = field(default_factory=list)
    # each output, and the number of the input that it is written into
    outputs: list[tuple[Item | tuple[Item, ...], int | None]] = field(default_factory=list)
    # results that are written into an input of their type, and its number
    written: dict[Value, int] = field(default_factory=dict)
    default_rng: RngState | None = None
    op_name: str = ""

    def __post_init__(self) -> None:
        self.builder.device = self.device

    def begin_op(self, op: str, loc: Loc | None) -> None:
        """Set the op that is lowered next, for error messages and locations."""
        self.op_name, self.builder.loc = op, loc

    def error(self, message: str) -> DefinitionError:
        """Return an error that names the op and the user's line."""
        return DefinitionError(located(self.op_name, self.builder.loc, message))

    # -- operands --------------------------------------------------------------------------------

    def operand(self, x: OperandLike) -> Item:
        """Convert a rule's argument to a Node or Number."""
        if isinstance(x, (Node, Number)):
            return x
        if isinstance(x, (bool, int, float, complex)):
            return Number(x, number_type(x))
        raise self.error(f"{describe(x)} is neither a tensor nor a number")

    def tensor(self, x: OperandLike, what: str = "the operand") -> Node:
        """Return a tensor argument; DefinitionError for a number."""
        if isinstance(x, Node) and not x.scalar:
            return x
        raise self.error(f"{what} must be a tensor, not {describe(x)}")

    def dim(self, x: OperandLike, what: str = "a size") -> Dim:
        """Convert an integer argument to a size."""
        found = x.value if isinstance(x, Number) else x
        if isinstance(x, Number) and isinstance(found, float) and math.isfinite(found):
            found = round(found) if abs(found - round(found)) <= 1e-9 * abs(found) else found
        if isinstance(x, Node) and (symbols := self._symbols_behind(x)):
            self.specialize(symbols)  # then it is a constant
            return self.symbol(f"e{len(self.symbols)}", 0)
        if isinstance(found, (int, SymDim)):
            return int(found) if isinstance(found, bool) else found
        raise self.error(f"{what} must be an integer, not {describe(x)}")

    def _symbols_behind(self, x: Node) -> list[SymDim]:
        """Return the sizes and integer inputs that a scalar is computed from; else nothing."""
        producers = self.producers()
        values, found = [x.value] if x.scalar else [], list[SymDim]()
        for value in values:  # the loop appends to it
            op = producers.get(value)
            if op is None:  # an input that is no integer
                return []
            values += op.inputs
            terms = [o.value for o in op.operands if isinstance(o, Scalar)]
            terms += [value for _, value in op.attrs if isinstance(value, SymDim)]
            found += [t for t in terms if isinstance(t, SymDim)]
        return found

    def integer(self, x: OperandLike, what: str) -> int:
        """Convert an argument to an integer that is constant in the definition."""
        found = self.dim(x, what)
        if isinstance(found, SymDim):
            raise self.error(f"{what} must be a constant integer")
        return found

    def dims(self, given: Shape, what: str = "the shape") -> tuple[Dim, ...]:
        """Convert a list or vector to sizes."""
        if not isinstance(given, (list, tuple)):
            raise self.error(f"{what} must be a list, not {describe(given)}")
        return tuple(self.dim(x, f"an entry of {what}") for x in given)

    def sizes(self, given: Shape, what: str = "the shape") -> tuple[Dim, ...]:
        """Convert a list or vector to sizes, none of them negative."""
        found = self.dims(given, what)
        self.require_sizes(found, what)
        return found

    def require_sizes(self, sizes: Sequence[Dim], what: str = "the shape") -> None:
        """Raise DefinitionError if a size is negative; a run checks symbolic ones."""
        for size in sizes:
            self.require_at_least(size, 0, f"{what} {show_shape(sizes)} has a negative size")

    def axis(self, given: OperandLike, rank: int, what: str = "dim") -> int:
        """Convert a dimension, possibly negative, to one counted from the front."""
        k = self.integer(given, what)
        if not -max(rank, 1) <= k < max(rank, 1):
            raise self.error(f"{what} is {k}, out of range for a tensor of rank {rank}")
        return k % max(rank, 1)

    def promoted_type(
        self, operands: Iterable[Item], *, to_float: bool = False, keep_narrow: bool = False
    ) -> DataType:
        """Return the type that an op on these operands computes in."""
        groups: tuple[list[DataType], ...] = ([], [], [])  # tensors, 0-d tensors, scalars
        for x in operands:
            group = 2 if isinstance(x, Number) or x.scalar else 0 if x.rank else 1
            groups[group].append(x.dtype)
        return promote(groups, to_float=to_float, keep_narrow=keep_narrow)

    def value_of(self, x: Item, dtype: DataType) -> Value:
        """Convert an item to a tensor of this type; a number becomes a 0-d tensor."""
        if isinstance(x, Node):
            return self.convert(x.value, x.dtype, dtype)
        if dtype.ir is DType.OTHER or isinstance(x.value, complex):
            target = "aten.scalar_tensor.default"
            return self.call(target, (x.value,), (), dtype, dtype=dtype.torch).value
        return self.builder.full((), Scalar(x.value), dtype.ir)

    def convert(self, value: Value, source: DataType, target: DataType) -> Value:
        """Convert a value to another type, through PyTorch if the IR lacks one of the types."""
        if source.torch == target.torch:
            return value
        if torch.float4_e2m1fn_x2 in (source.torch, target.torch):
            raise self.error("it takes no Float4_e2m1fn operands; convert them with cast first")
        if DType.OTHER not in (source.ir, target.ir):
            return self.builder.convert(value, target.ir)
        name, shape = "aten._to_copy.default", value.shape
        return self.call(name, (value,), shape, target, dtype=target.torch).value

    def cast(self, x: Item, dtype: DataType, *, scalar: bool = False) -> Node:
        """Return an item as a tensor of this type."""
        return Node(self.value_of(x, dtype), dtype, scalar=scalar)

    def copy(self, x: Node) -> Node:
        """Return a copy of `x`."""
        if x.dtype.ir is DType.OTHER:
            return self.call("aten.clone.default", (x.value,), x.shape, x.dtype)
        return Node(self.builder.copy(x.value), x.dtype)

    # -- PyTorch operators -----------------------------------------------------------------------

    def call(
        self,
        target: str,
        args: Sequence[Argument],
        shape: tuple[Dim, ...],
        dtype: DataType,
        /,
        *,
        scalar: bool = False,
        **keyword: Argument,
    ) -> Node:
        """Append a call of a PyTorch operator with one result."""
        attrs: dict[str, Attr] = {"shape": shape, "dtype": dtype.ir}
        if target == SEED:
            attrs["effect"] = True
        (value,) = self._append(target, args, keyword, [(shape, dtype.ir)], attrs)
        return Node(value, dtype, scalar=scalar)

    def draw_seed(self) -> Node:
        """Append a call that draws two words from the default generator of the device."""
        args = () if is_host(self.device) else (torch.device(self.device),)
        return self.call(SEED, args, (2,), DataType.Int)

    def call_results(
        self,
        target: str,
        args: Sequence[Argument],
        results: Sequence[tuple[tuple[Dim, ...], DataType]],
        picks: tuple[int, ...],
        **keyword: Argument,
    ) -> list[Node]:
        """Append a call of a PyTorch operator with several results; return those at `picks`."""
        types = [(shape, dtype.ir) for shape, dtype in results]
        values = self._append(target, args, keyword, types, {"picks": picks})
        return [Node(v, dtype) for v, (_, dtype) in zip(values, results, strict=True)]

    def reinterpret(self, value: Value, dtype: torch.dtype) -> Value:
        """Return a tensor's bytes as another type of the same size."""
        ir = from_torch_dtype(dtype)
        results, attrs = [(value.shape, ir)], dict[str, Attr](shape=value.shape, dtype=ir)
        return self._append("aten.view.dtype", (value, dtype), {}, results, attrs)[0]

    def row_major(self, value: Value) -> Value:
        """Return a row-major copy."""
        results = [(value.shape, value.dtype)]
        attrs: dict[str, Attr] = {"shape": value.shape, "dtype": value.dtype}
        keyword = {"memory_format": torch.contiguous_format}
        return self._append("aten.clone.default", (value,), keyword, results, attrs)[0]

    def producers(self) -> dict[Value, Op]:
        """Return the op of each result so far."""
        return {v: op for op in self.builder.ops for v in op.results}

    def _append(
        self,
        target: str,
        args: Sequence[Argument],
        keyword: Mapping[str, Argument],
        results: Sequence[tuple[tuple[Dim, ...], DType]],
        attrs: Mapping[str, Attr],
    ) -> tuple[Value, ...]:
        operands, arguments = call_arguments(args, keyword)
        # the state of the random number generator is in CPU memory
        device, first = HOST if target == SEED else self.device, self.builder.value_count
        self.builder.value_count += len(results)
        values = tuple(
            Value(TensorType(shape, dtype, device), f"v{k}")
            for k, (shape, dtype) in enumerate(results, first)
        )
        attrs = {"target": target, "args": arguments, **attrs}
        op = Op("opaque", operands, values, tuple(attrs.items()), self.builder.loc)
        self.builder.ops.append(op)
        return values

    # -- sizes -----------------------------------------------------------------------------------

    def symbol(self, name: str, source: SizeSource) -> Dim:
        """Return a size read from the arguments, as a symbol or as what it is known to equal."""
        self.symbols[name] = source
        size = self.static_sizes[name] if name in self.static_sizes else symbol(name)
        for equality in self.equalities:
            size = substitute_dim(size, equality.symbol, equality.size)
        return size

    def derived_size(self, function: str, *operands: SizeTerm) -> Dim:
        """Return a symbol for a size computed from other symbols."""
        source = apply_function(function, *operands)
        names = [name for name, known_source in self.symbols.items() if known_source == source]
        return self.symbol(names[0] if names else f"e{len(self.symbols)}", source)

    def require_equal(self, a: Dim, b: Dim, what: str) -> None:
        """Make two sizes equal; a run checks it. DefinitionError if they differ.

        Raises SizesMustBeEqual to begin a lowering with the equality.
        """
        if a == b:
            return
        if isinstance(a, int) and isinstance(b, int):
            raise self.error(f"{what}: {a} and {b} differ")
        for x, y in ((b, a), (a, b)):
            if (
                isinstance(x, SymDim)
                and (name := only_symbol(x))
                and name not in self.sources_of([y])
            ):
                reason = located(self.op_name, self.builder.loc, what)
                raise SizesMustBeEqual(SizeEquality(name, y, reason))
        self.specialize([a, b])

    def require_at_least(self, number: Dim, least: int, message: str) -> None:
        """Raise DefinitionError if a number is too small; a run checks a symbolic one."""
        if isinstance(number, SymDim):
            message = located(self.op_name, self.builder.loc, message)
            self.minima.append((number, least, message))
        elif number < least:
            raise self.error(message)

    def with_equality(self, equality: SizeEquality) -> Lowering:
        """Return a new lowering with one more equality; symbols keep their names."""
        return Lowering(
            self.static_sizes,
            self.stride_patterns,
            self.device,
            (*self.equalities, equality),
            symbols=dict(self.symbols),
        )

    def specialize(self, dims: Iterable[Dim]) -> None:
        """Require these sizes to be static: the definition is then compiled for each of them."""
        for name, source in self.sources_of(dims).items():
            if isinstance(source, ArgumentSize):
                self.specialized[name] = source

    def is_zero(self, size: Dim) -> bool:
        """Whether a size is 0; inputs with such sizes then have a variant of their own."""
        if isinstance(size, int):
            return size == 0
        sources = self.sources_of([size])
        found = {s: x for s, x in sources.items() if isinstance(x, ArgumentSize)}
        if len(size.terms) > 1 or len(found) < len(sources):
            self.specialize([size])  # 0 for other sizes than 0, too
        self.zero_specialized |= found
        return False

    def sources_of(self, dims: Iterable[Dim]) -> dict[str, SizeSource]:
        """Return the sources of the symbols in these sizes, and of the symbols that define them."""
        names = [s for d in dims for s in symbols_of(d)]
        for name in names:  # the loop appends to it
            source = self.symbols[name]
            names += () if isinstance(source, ArgumentSize) else size_symbols(source)
        return {s: source for s, source in self.symbols.items() if s in names}

    def reshaped(self, x: Node, shape: Iterable[Dim]) -> Node:
        """Return a tensor with another shape, which a run checks if it must."""
        return Node(self.checked_reshape(x.value, tuple(shape), x.dtype), x.dtype)

    def checked_reshape(self, value: Value, shape: tuple[Dim, ...], dtype: DataType) -> Value:
        """Reshape a value, through PyTorch if only a run can tell whether the sizes match."""
        if value.shape == shape:
            return value
        if product(value.shape) == product(shape):
            return self.builder.reshape(value, shape)
        if not any(isinstance(d, SymDim) for d in (*value.shape, *shape)):
            raise self.error(
                f"a tensor of shape {show_shape(value.shape)} cannot be reshaped to "
                f"{show_shape(shape)}"
            )
        self.specialize((*value.shape, *shape))
        return self.call("aten.reshape.default", (value, shape), shape, dtype).value


def only_symbol(dim: SymDim) -> str | None:
    """Return the name of a size that is a single symbol, else None."""
    names = symbols_of(dim)
    return names[0] if len(names) == 1 and dim == symbol(names[0]) else None
