"""The ATen call that a lowering rule reads: arguments by schema name, already lowered."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import TypeVar, Union

import torch
from torch.fx import Node
from torch.fx.node import Argument as FxArgument

from tofuse.capture.lower.builder import Builder, Unsupported
from tofuse.ir.call_arguments import CallArguments, TorchConstant
from tofuse.ir.dims import Dim, SymDim
from tofuse.ir.elements import round_scalar
from tofuse.ir.graph import Operand, Scalar, Value
from tofuse.ir.size_expression import SizeExpression
from tofuse.ir.types import DType, TensorType
from tofuse.ops.reference import from_torch_dtype

Constant = Union[  # noqa: UP007  (evaluated at run time)
    bool, int, float, complex, str, None, torch.dtype, torch.device, torch.layout,
    torch.memory_format,
]  # fmt: skip
Element = TypeVar("Element")
Argument = Union[Constant, SymDim, SizeExpression, Value, Sequence["Argument"]]  # noqa: UP007


@dataclass(frozen=True)
class AtenCall:
    """A call to lower. Reading an argument as another type than its own raises Unsupported.

    `fx_arguments` are the arguments by name, as in the FX graph: nodes, not lowered values.
    """

    build: Builder
    node: Node
    arguments: Mapping[str, Argument]
    fx_arguments: Mapping[str, FxArgument]

    @property
    def out(self) -> TensorType:
        """The type of the only result, from torch."""
        return self.type_of(self.node.meta["val"])

    def type_of(self, tensor: torch.Tensor) -> TensorType:
        """Return the IR type of a fake tensor."""
        shape = self.build.sizes.shape(tensor.shape)
        return TensorType(shape, from_torch_dtype(tensor.dtype), str(tensor.device))

    def elementwise(self, kind: str, *operands: Operand, dtype: DType | None = None) -> Value:
        """Apply an op to operands brought to the result's shape and to `dtype`, or its dtype."""
        out = self.out
        return self.build.elementwise(kind, *operands, shape=out.shape, dtype=dtype or out.dtype)

    @property
    def reads_only_first(self) -> bool:
        """Whether nothing reads another result than the first."""
        users = self.node.users
        return all(u.target is operator.getitem and u.args[1] == 0 for u in users)

    def has(self, name: str) -> bool:
        """Whether the argument exists and is not None."""
        return self.arguments.get(name) is not None

    def tensor(self, name: str) -> Value:
        value = self.arguments.get(name)
        if not isinstance(value, Value):
            raise Unsupported(f"{name} is no tensor")
        return value

    def elements(self, name: str, *types: type[Element]) -> tuple[Element, ...]:
        """Return the elements of a list, if all are of these types."""
        value = self.arguments.get(name)
        if not isinstance(value, (list, tuple)):
            raise Unsupported(f"{name} is no list")
        found = tuple(v for v in value if isinstance(v, types))
        if len(found) != len(value):
            raise Unsupported(f"{name} holds something that is no {types[0].__name__}")
        return found

    def optional_tensors(self, name: str) -> tuple[Value | None, ...]:
        return self.elements(name, Value, NoneType)

    def operand(self, name: str, dtype: DType | None = None) -> Operand:
        """Return a tensor, or a number as a Scalar, rounded to `dtype`, or the result's dtype.

        ATen rounds a wider 0-d tensor to half precision first, and its CPU kernels round numbers.
        """
        dtype, x = dtype or self.out.dtype, self.exact_operand(name)
        if not dtype.is_reduced_float:
            return x
        if isinstance(x, Value):
            return self.build.convert(x, dtype) if x.dtype in (DType.F32, DType.F64) else x
        return round_scalar(x, dtype) if self.out.on_host else x

    def exact_operand(self, name: str) -> Operand:
        """Return a tensor, or a number as a Scalar, as it is: the second operand of a product."""
        value = self.arguments.get(name)
        if isinstance(value, Value):
            return value
        if isinstance(value, SizeExpression):
            return scalar_tensor(self.build, value)
        return Scalar(self.number(name))

    def number(self, name: str) -> bool | int | float | SymDim:
        value = self.arguments.get(name)
        if isinstance(value, (bool, int, float, SymDim)):
            return value
        raise Unsupported(f"{name} is no number")

    def integer(self, name: str) -> int:
        value = self.arguments.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise Unsupported(f"{name} is no static integer")

    def flag(self, name: str) -> bool:
        return bool(self.arguments.get(name))

    def integers(self, name: str) -> tuple[int, ...]:
        value = self.arguments.get(name)
        return (value,) if isinstance(value, int) else self.elements(name, int)

    def per_dim(self, name: str, rank: int) -> tuple[int, ...]:
        """Return an integer for each of `rank` dimensions; a single one counts for all."""
        numbers = self.integers(name)
        return numbers if len(numbers) == rank else numbers * rank

    def sizes(self, name: str) -> tuple[Dim, ...]:
        return self.elements(name, int, SymDim)

    def dim(self, name: str, rank: int) -> int:
        """Return a dimension counted from the front."""
        return canonicalize_dim(self.integer(name), rank)

    def dims(self, name: str, rank: int) -> tuple[int, ...]:
        """Return dimensions counted from the front, sorted; None and the empty list mean all."""
        value = self.integers(name) if self.has(name) else ()
        if not value:
            return tuple(range(rank))
        return tuple(sorted({canonicalize_dim(d, rank) for d in value}))


# One result or several; None for a result without users.
RuleResult = Union[Value, tuple[Union[Value, None], ...]]  # noqa: UP007  (evaluated at run time)
LoweringRule = Callable[[AtenCall], RuleResult]


def canonicalize_dim(dim: int, rank: int) -> int:
    """Return a dimension counted from the front; a 0-d tensor counts as 1-d."""
    return dim + max(rank, 1) if dim < 0 else dim


def scalar_tensor(build: Builder, value: SizeExpression) -> Value:
    """Append a 0-d float64 tensor of an expression; PyTorch evaluates it at each call."""
    return build.emit(
        "opaque",
        (),
        {
            "target": "aten.scalar_tensor.default",
            "args": CallArguments((value,), (("dtype", TorchConstant("float64")),)),
            "shape": (),
            "dtype": DType.F64,
        },
    )
