"""What the statements of kernels have in common: the values, indices and sizes that they read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar, Union

from tofuse.ir.affine import AffineExpr
from tofuse.ir.dims import Dim, SymDim
from tofuse.ir.graph import Scalar

T = TypeVar("T")

Arg = Union[str, Scalar]  # noqa: UP007


def _unchanged(x: T) -> T:
    return x


@dataclass(frozen=True)
class StatementMap:
    """Functions that `Statement.map` applies to what a statement reads."""

    index: Callable[[AffineExpr], AffineExpr] = _unchanged
    dim: Callable[[Dim], Dim] = _unchanged
    value: Callable[[str], str] = _unchanged

    def arg(self, arg: Arg) -> Arg:
        if isinstance(arg, str):
            return self.value(arg)
        return Scalar(self.dim(arg.value)) if isinstance(arg.value, SymDim) else arg

    def guard(self, guard: str | None) -> str | None:
        return None if guard is None else self.value(guard)


class Statement:
    """A statement of a kernel."""

    @cached_property
    def uses(self) -> tuple[str, ...]:
        """The names of the values that the statement reads."""
        return self._reads[0]

    @cached_property
    def indices(self) -> tuple[AffineExpr, ...]:
        return self._reads[1]

    @cached_property
    def dims(self) -> tuple[Dim, ...]:
        """Every size that occurs in the statement."""
        in_indices = [d for i in self.indices for d in (i.const, *(c for _, c in i.terms))]
        return (*in_indices, *self._reads[2])

    @cached_property
    def _reads(self) -> tuple[tuple[str, ...], tuple[AffineExpr, ...], tuple[Dim, ...]]:
        """Names, indices and sizes, in the order in which `map` meets them."""
        names: list[str] = []
        indices: list[AffineExpr] = []
        dims: list[Dim] = []
        self.map(StatementMap(_recorder(indices), _recorder(dims), _recorder(names)))
        return tuple(names), tuple(indices), tuple(dims)

    def map(self, f: StatementMap) -> Statement:
        """Return the statement with functions applied to its indices, sizes and operands."""
        raise NotImplementedError  # abstract: each kind of statement defines it


def _recorder(found: list[T]) -> Callable[[T], T]:
    """Return a function that appends its argument to `found` and returns it."""

    def record(x: T) -> T:
        found.append(x)
        return x

    return record
