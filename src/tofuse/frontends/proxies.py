"""Proxies for the tensors, scalars and vectors of a definition, which its user operates on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar, Protocol, Union

from tofuse.frontends.datatypes import DataType
from tofuse.frontends.definition import Ref
from tofuse.frontends.items import Lowered, Node, Number
from tofuse.ir.dims import SymDim

Operand = Union["Proxy", bool, int, float, complex]


_Unary = Callable[["Proxy"], "Tensor"]
_Binary = Callable[["Proxy", Operand], "Tensor"]


class ProxyOwner(Protocol):
    """The definition that proxies belong to."""

    def record(self, name: str, *args: object, **kwargs: object) -> Tensor: ...

    def lowered_value(self, ref: Ref) -> Lowered: ...


class Proxy:
    """A proxy for one value of the definition `fd`."""

    def __init__(self, fd: ProxyOwner, ref: Ref) -> None:
        self.fd: ProxyOwner = fd
        self.ref: Ref = ref

    @property
    def index(self) -> int:
        return self.ref.index

    def is_tensor(self) -> bool:
        """Return whether this is a tensor of the definition."""
        return self.ref.kind == "T"

    def is_symbolic(self) -> bool:
        """Return whether the value is known only at run time."""
        item = self.fd.lowered_value(self.ref)
        return not isinstance(item, Number) or isinstance(item.value, SymDim)

    def _op(self, name: str, *args: object) -> Tensor:
        return self.fd.record(name, *args)

    def __repr__(self) -> str:
        return repr(self.ref)


def _unary(name: str) -> _Unary:
    return lambda self: self._op(name, self)


def _binary(name: str) -> _Binary:
    return lambda self, other: self._op(name, self, other)


def _reflected(name: str) -> _Binary:
    return lambda self, other: self._op(name, other, self)


class ArithmeticProxy(Proxy):
    """A proxy with Python operators, which append ops; `==` compares elementwise."""

    def __hash__(self) -> int:
        return Proxy.__hash__(self)

    __add__: ClassVar[_Binary] = _binary("add")
    __radd__: ClassVar[_Binary] = _reflected("add")
    __sub__: ClassVar[_Binary] = _binary("sub")
    __rsub__: ClassVar[_Binary] = _reflected("sub")
    __mul__: ClassVar[_Binary] = _binary("mul")
    __rmul__: ClassVar[_Binary] = _reflected("mul")
    __truediv__: ClassVar[_Binary] = _binary("div")
    __rtruediv__: ClassVar[_Binary] = _reflected("div")
    __mod__: ClassVar[_Binary] = _binary("mod")
    __rmod__: ClassVar[_Binary] = _reflected("mod")
    __pow__: ClassVar[_Binary] = _binary("pow")
    __rpow__: ClassVar[_Binary] = _reflected("pow")
    __and__: ClassVar[_Binary] = _binary("bitwise_and")
    __rand__: ClassVar[_Binary] = _reflected("bitwise_and")
    __or__: ClassVar[_Binary] = _binary("bitwise_or")
    __ror__: ClassVar[_Binary] = _reflected("bitwise_or")
    __xor__: ClassVar[_Binary] = _binary("bitwise_xor")
    __rxor__: ClassVar[_Binary] = _reflected("bitwise_xor")
    __lshift__: ClassVar[_Binary] = _binary("bitwise_left_shift")
    __rlshift__: ClassVar[_Binary] = _reflected("bitwise_left_shift")
    __rshift__: ClassVar[_Binary] = _binary("bitwise_right_shift")
    __rrshift__: ClassVar[_Binary] = _reflected("bitwise_right_shift")
    __lt__: ClassVar[_Binary] = _binary("lt")
    __le__: ClassVar[_Binary] = _binary("le")
    __gt__: ClassVar[_Binary] = _binary("gt")
    __ge__: ClassVar[_Binary] = _binary("ge")
    __eq__: ClassVar[_Binary] = _binary("eq")  # type: ignore[assignment]  # elementwise
    __ne__: ClassVar[_Binary] = _binary("ne")  # type: ignore[assignment]  # elementwise
    __neg__: ClassVar[_Unary] = _unary("neg")
    __abs__: ClassVar[_Unary] = _unary("abs")
    __invert__: ClassVar[_Unary] = _unary("bitwise_not")

    def __bool__(self) -> bool:
        raise TypeError(f"{self!r} has no truth value before the fusion runs")

    @property
    def dtype(self) -> DataType:
        """The element type, also as `dtype()`."""
        item = self.fd.lowered_value(self.ref)
        assert isinstance(item, (Node, Number))
        return item.dtype


class Tensor(ArithmeticProxy):
    """A tensor of the definition."""

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        item = self.fd.lowered_value(self.ref)
        assert isinstance(item, Node)
        return item.rank

    def size(self, dim: int) -> Tensor:
        """Return the size of one dimension as a Scalar."""
        return self._op("size", self, dim)

    def shape(self) -> Tensor:
        """Return all sizes as a Vector."""
        return self._op("shape", self)

    def __getitem__(self, index: Operand) -> Tensor:
        return self._op("select", self, index, 0)

    def __iter__(self) -> Iterator[Tensor]:
        raise TypeError(f"{self!r} is a tensor of the definition and cannot be iterated over")


class Scalar(ArithmeticProxy):
    """A number of the definition."""


class Vector(Proxy):
    """A list of integers of the definition."""

    @property
    def size(self) -> int:
        """The number of entries."""
        item = self.fd.lowered_value(self.ref)
        assert isinstance(item, tuple)
        return len(item)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Tensor:
        if not -self.size <= index < self.size:
            raise IndexError(f"index {index} is out of range for a vector of {self.size} entries")
        return self._op("at", self, index)


PROXIES: dict[str, type[Proxy]] = {"T": Tensor, "S": Scalar, "V": Vector}
