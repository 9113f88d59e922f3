"""One ATen call, its arguments by schema name and already in terms of the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Union

import torch
from torch.fx import Node

from tofuse.capture.fx.dtypes import dtype_of
from tofuse.capture.lower.builder import Builder, Refused
from tofuse.ir.dims import Dim, SymDim
from tofuse.ir.graph import Operand, Scalar, Value
from tofuse.ir.types import DType, TensorType


@dataclass(frozen=True)
class Text:
    """A number that sizes determine but no polynomial gives: Python text over their symbols."""

    text: str


Constant = Union[  # noqa: UP007  (evaluated at run time)
    bool, int, float, complex, str, None, torch.dtype, torch.device, torch.layout,
    torch.memory_format,
]  # fmt: skip
Argument = Union[Constant, SymDim, Text, Value, Sequence["Argument"]]  # noqa: UP007


@dataclass(frozen=True)
class Call:
    """What a rule sees. Reading an argument as what it is not refuses the call."""

    build: Builder
    node: Node
    arguments: Mapping[str, Argument]

    @property
    def out(self) -> TensorType:
        """The type torch gave the only result."""
        return self.type_of(self.node.meta["val"])

    def type_of(self, tensor: torch.Tensor) -> TensorType:
        shape = self.build.sizes.shape(tensor.shape)
        return TensorType(shape, dtype_of(tensor.dtype), str(tensor.device))

    def given(self, name: str) -> bool:
        """Whether the argument exists and is not None."""
        return self.arguments.get(name) is not None

    def tensor(self, name: str) -> Value:
        value = self.arguments.get(name)
        if not isinstance(value, Value):
            raise Refused(f"{name} is no tensor")
        return value

    def tensors(self, name: str) -> list[Value]:
        value = self.arguments.get(name)
        if not isinstance(value, (list, tuple)):
            raise Refused(f"{name} is no list of tensors")
        found = [v for v in value if isinstance(v, Value)]
        if len(found) != len(value):
            raise Refused(f"{name} holds something that is no tensor")
        return found

    def operand(self, name: str) -> Operand:
        """A tensor, or a number as a Scalar."""
        value = self.arguments.get(name)
        if isinstance(value, Value):
            return value
        if isinstance(value, (bool, int, float, SymDim)):
            return Scalar(value)
        if isinstance(value, Text):
            return scalar_tensor(self.build, value)
        raise Refused(f"{name} is neither tensor nor real number")

    def number(self, name: str) -> bool | int | float | SymDim:
        value = self.arguments.get(name)
        if isinstance(value, (bool, int, float, SymDim)):
            return value
        raise Refused(f"{name} is no number")

    def integer(self, name: str) -> int:
        value = self.arguments.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise Refused(f"{name} is no fixed integer")

    def flag(self, name: str) -> bool:
        return bool(self.arguments.get(name))

    def integers(self, name: str) -> tuple[int, ...]:
        value = self.arguments.get(name)
        if isinstance(value, int):
            return (value,)
        if not isinstance(value, (list, tuple)):
            raise Refused(f"{name} is no list of integers")
        found = tuple(v for v in value if isinstance(v, int))
        if len(found) != len(value):
            raise Refused(f"{name} holds sizes that are not fixed")
        return found

    def sizes(self, name: str) -> tuple[Dim, ...]:
        value = self.arguments.get(name)
        if not isinstance(value, (list, tuple)):
            raise Refused(f"{name} is no list of sizes")
        found = tuple(v for v in value if isinstance(v, (int, SymDim)))
        if len(found) != len(value):
            raise Refused(f"{name} holds something that is no size")
        return found

    def dim(self, name: str, rank: int) -> int:
        """One dimension, counted from the front."""
        return wrap(self.integer(name), rank)

    def dims(self, name: str, rank: int) -> tuple[int, ...]:
        """Dimensions counted from the front, sorted; None and the empty list mean all."""
        value = self.integers(name) if self.given(name) else ()
        return tuple(sorted({wrap(d, rank) for d in value})) if value else tuple(range(rank))

    def dtype(self, name: str) -> DType | None:
        value = self.arguments.get(name)
        return dtype_of(value) if isinstance(value, torch.dtype) else None


# One result or several, of which None are not asked for.
Made = Union[Value, tuple[Union[Value, None], ...]]  # noqa: UP007  (evaluated at run time)
Rule = Callable[[Call], Made]


def wrap(dim: int, rank: int) -> int:
    """A dimension counted from the front; a 0-d tensor counts as having one."""
    return dim + max(rank, 1) if dim < 0 else dim


def scalar_tensor(build: Builder, value: Text) -> Value:
    """A float of the sizes as a 0-d tensor, computed by PyTorch at each call."""
    return build.emit(
        "opaque",
        (),
        {
            "target": "aten.scalar_tensor.default",
            "args": f"{value.text}, dtype=torch.float64",
            "shape": (),
            "dtype": DType.F64,
        },
    )
