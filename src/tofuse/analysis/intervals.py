"""Intervals of integers and conditions in a block of a kernel's iterations.

Interval arithmetic after Moore ("Interval Analysis", 1966). One set of rules serves compiling, with
numbers, and code that computes bounds when it runs, with operands: an `Arithmetic` does each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tofuse.ir.affine import AffineExpr
from tofuse.ir.dims import Dim, size_hint
from tofuse.ir.graph import Scalar
from tofuse.ir.kernel import Compute, InRange, Iota, Kernel, Load, Stmt
from tofuse.ir.statement import Arg
from tofuse.ir.types import DType

N = TypeVar("N")
UNKNOWN = 2**61  # stands for an unknown bound of a loaded integer
GREAT = 2**40  # from which a loaded integer counts as unknown: sums with it may wrap


@dataclass(frozen=True)
class Interval(Generic[N]):
    """The least and the greatest value, both included. Conditions are 0 or 1."""

    low: N
    high: N

    def __iter__(self) -> Iterator[N]:
        yield self.low
        yield self.high


class Arithmetic(Protocol[N]):
    """What the rules need of a number. Comparisons return 0 or 1."""

    def number(self, value: int) -> N: ...
    def size(self, dim: Dim) -> N: ...
    def add(self, x: N, y: N) -> N: ...
    def subtract(self, x: N, y: N) -> N: ...
    def multiply(self, x: N, y: N) -> N: ...
    def minimum(self, x: N, y: N) -> N: ...
    def maximum(self, x: N, y: N) -> N: ...
    def is_less(self, x: N, y: N) -> N: ...
    def select(self, condition: N, x: N, y: N) -> N: ...
    def loaded(self, load: Load) -> Interval[N] | None: ...


class IntervalRules(Generic[N]):
    """Computes the intervals of a kernel's values in a block: `axes` has the interval of each axis.

    An interval is None if no rule has it. `known` are intervals found before.
    """

    def __init__(
        self, kernel: Kernel, axes: Mapping[str, Interval[N]], arithmetic: Arithmetic[N]
    ) -> None:
        self.kernel, self.axes, self.by = kernel, axes, arithmetic
        self.known: dict[str, Interval[N] | None] = {}

    def of(self, arg: Arg) -> Interval[N] | None:
        """Return the interval of a value or number."""
        if isinstance(arg, Scalar):
            return self._of_number(arg)
        if arg not in self.known:
            self.known[arg] = self._of_statement(self.kernel.definitions[arg])
        return self.known[arg]

    def _of_number(self, scalar: Scalar) -> Interval[N] | None:
        value = scalar.value
        if isinstance(value, (int, float)):
            if value != value or value in (float("inf"), float("-inf")) or int(value) != value:
                return None
            return Interval(*[self.by.number(int(value))] * 2)
        return Interval(*[self.by.size(value)] * 2)

    def _of_statement(self, stmt: Stmt) -> Interval[N] | None:
        match stmt:
            case Iota(index=index):
                return self.of_index(index)
            case InRange(index=index, lo=lo, hi=hi, guard=None):
                x, (low, high) = self.of_index(index), map(self.by.size, (lo, hi))
                is_low = self._less(x, Interval(low, low))
                return self._both(self._not(is_low), self._less(x, Interval(high, high)))
            case Load(guard=None):
                return self.by.loaded(stmt)
            case Compute(op="where", args=(condition, x, y)):
                return self._where(*map(self.of, (condition, x, y)))
            case Compute(op="convert", args=(x,)):
                found = self.of(x)
                if stmt.dtype is DType.BOOL and found is not None:
                    zero = self.by.number(0)
                    return self._not(self._equal(found, Interval(zero, zero)))
                return found if _is_exact(stmt.operand_dtype, stmt.dtype) else None
            case Compute() if stmt.op in self._rules and not self._may_wrap(stmt):
                operands = [self.of(a) for a in stmt.args]
                known = [x for x in operands if x is not None]
                return self._rules[stmt.op](*known) if len(known) == len(operands) else None
        return None

    def _may_wrap(self, stmt: Compute) -> bool:
        """Whether arithmetic may leave the integers of its type, which the kernel wraps.

        Positions are small. Loaded numbers may be any, but those of 64 bits: `loaded` gives wide
        intervals to great ones.
        """
        if stmt.dtype.is_float:
            return True
        if stmt.dtype is DType.BOOL or stmt.op in ("minimum", "maximum"):
            return False
        is_loaded = any(map(self._is_loaded, stmt.args))
        if stmt.op == "mul":
            return is_loaded or stmt.dtype is not DType.I64
        return stmt.dtype is not DType.I64 and (is_loaded or stmt.dtype is not DType.I32)

    def _is_loaded(self, arg: Arg) -> bool:
        """Whether a value depends on a loaded one."""
        if not isinstance(arg, str):
            return False
        stmt = self.kernel.definitions[arg]
        return isinstance(stmt, Load) or any(map(self._is_loaded, stmt.uses))

    def of_index(self, index: AffineExpr) -> Interval[N]:
        """Return the interval of an index."""
        by = self.by
        low = high = by.size(index.const)
        for axis, step in index.terms:
            ends = [by.multiply(by.size(step), x) for x in self.axes[axis]]
            low = by.add(low, by.minimum(*ends))
            high = by.add(high, by.maximum(*ends))
        return Interval(low, high)

    @property
    def _rules(self) -> Mapping[str, Callable[..., Interval[N] | None]]:
        return {
            "add": lambda x, y: Interval(*map(self.by.add, x, y)),
            "sub": self._subtract,
            "neg": lambda x: self._subtract(Interval(*[self.by.number(0)] * 2), x),
            "mul": self._multiply,
            "abs": self._absolute,
            "minimum": lambda x, y: Interval(*map(self.by.minimum, x, y)),
            "maximum": lambda x, y: Interval(*map(self.by.maximum, x, y)),
            "lt": self._less,
            "gt": lambda x, y: self._less(y, x),
            "ge": lambda x, y: self._not(self._less(x, y)),
            "le": lambda x, y: self._not(self._less(y, x)),
            "eq": self._equal,
            "ne": lambda x, y: self._not(self._equal(x, y)),
            "logical_not": self._not,
            "logical_and": self._both,
            "logical_or": lambda x, y: Interval(*map(self.by.maximum, x, y)),
        }

    def _subtract(self, x: Interval[N], y: Interval[N]) -> Interval[N]:
        return Interval(self.by.subtract(x.low, y.high), self.by.subtract(x.high, y.low))

    def _multiply(self, x: Interval[N], y: Interval[N]) -> Interval[N]:
        by = self.by
        ends = [by.multiply(a, b) for a in x for b in y]
        low = by.minimum(by.minimum(*ends[:2]), by.minimum(*ends[2:]))
        return Interval(low, by.maximum(by.maximum(*ends[:2]), by.maximum(*ends[2:])))

    def _absolute(self, x: Interval[N]) -> Interval[N]:
        by, negative = self.by, self._subtract(Interval(*[self.by.number(0)] * 2), x)
        low = by.maximum(by.number(0), by.maximum(x.low, negative.low))
        return Interval(low, by.maximum(x.high, negative.high))

    def _less(self, x: Interval[N], y: Interval[N]) -> Interval[N]:
        return Interval(self.by.is_less(x.high, y.low), self.by.is_less(x.low, y.high))

    def _not(self, x: Interval[N]) -> Interval[N]:
        one = self.by.number(1)
        return Interval(self.by.subtract(one, x.high), self.by.subtract(one, x.low))

    def _both(self, x: Interval[N], y: Interval[N]) -> Interval[N]:
        return Interval(*map(self.by.minimum, x, y))

    def _equal(self, x: Interval[N], y: Interval[N]) -> Interval[N]:
        by, less = self.by, (self._less(x, y), self._less(y, x))
        is_outside = by.maximum(less[0].low, less[1].low)
        may_differ = by.maximum(less[0].high, less[1].high)
        return self._not(Interval(is_outside, may_differ))

    def _where(
        self,
        condition: Interval[N] | None,
        x: Interval[N] | None,
        y: Interval[N] | None,
    ) -> Interval[N] | None:
        if condition is None or x is None or y is None:
            return None
        by = self.by
        low, high = by.minimum(x.low, y.low), by.maximum(x.high, y.high)
        low, high = (by.select(condition.low, a, b) for a, b in zip(x, (low, high), strict=True))
        return Interval(
            by.select(condition.high, low, y.low), by.select(condition.high, high, y.high)
        )


def _is_exact(source: DType, target: DType) -> bool:
    """Whether a conversion keeps every number."""
    if source is DType.BOOL:
        return True
    if source.is_float or target.is_float:
        return False
    if DType.U8 in (source, target) and source is not target:
        return source is DType.U8 and target.itemsize > 1
    return target.itemsize >= source.itemsize


class Integers:
    """Arithmetic on numbers, with the hints of symbols. Loaded values are unknown."""

    def number(self, value: int) -> int:
        return value

    def size(self, dim: Dim) -> int:
        return size_hint(dim)

    def add(self, x: int, y: int) -> int:
        return x + y

    def subtract(self, x: int, y: int) -> int:
        return x - y

    def multiply(self, x: int, y: int) -> int:
        return x * y

    def minimum(self, x: int, y: int) -> int:
        return min(x, y)

    def maximum(self, x: int, y: int) -> int:
        return max(x, y)

    def is_less(self, x: int, y: int) -> int:
        return int(x < y)

    def select(self, condition: int, x: int, y: int) -> int:
        return x if condition else y

    def loaded(self, load: Load) -> Interval[int] | None:
        if load.dtype is DType.BOOL:
            return Interval(0, 1)
        return None if load.dtype.is_float else Interval(-UNKNOWN, UNKNOWN)
