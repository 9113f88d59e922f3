"""Which iterations of an axis add nothing to any result, because a condition masks them.

Attention replaces the scores of some keys by -inf or a number such as -1e9. Their exponentials are
then zero, and so is all that the results take from these keys.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, Union

from tofuse.analysis.intervals import IntervalRules
from tofuse.ir.graph import Scalar
from tofuse.ir.kernel import WRITES, Compute, Kernel, Reduce, Store, iteration_axes
from tofuse.ir.mask import Mask
from tofuse.ir.statement import Arg
from tofuse.ir.types import DType
from tofuse.ops.table import reduction_identity

EXP_UNDERFLOW = 104.0  # exp of -104 is zero in float32, whose least number is exp(-103.97)
N = TypeVar("N")
GREATEST_MASKED_SCORE = -1000.0  # greater numbers may be scores


@dataclass(frozen=True)
class BelowMaximum:
    """A number less a maximum that must exceed it by more than EXP_UNDERFLOW."""

    number: float
    maximum: str


# None: not known, taken for finite
MaskedValue = Union[float, BelowMaximum, None]  # noqa: UP007


def find_masks(kernel: Kernel, axis: str) -> list[Mask]:
    """Return what masks iterations of an axis; nothing if a result needs all of them.

    Masked scores, and what they multiply, are assumed finite. Where they are not, eager gives NaN
    and the kernel may not.
    """
    value_axes, stmt_axes = iteration_axes(kernel)
    if any(axis in stmt_axes[s] for s in kernel.body if isinstance(s, Store)):
        return []
    wheres = (s for s in kernel.body if isinstance(s, Compute) and s.op == "where")
    conditions = dict.fromkeys(c for s in wheres if isinstance(c := s.args[0], str))
    found: list[Mask] = []
    for condition in (c for c in conditions if axis in value_axes[c]):
        for masked_if in (True, False):
            least = _Masked(kernel, condition, masked_if).required_maxima(axis)
            if least is not None:
                found.append(Mask(axis, condition, masked_if, tuple(least.items())))
    return found


def may_matter(masks: Sequence[Mask], rules: IntervalRules[N]) -> N:
    """Return 1 if masks may leave an iteration of a block, else 0."""
    by = rules.by
    found = by.number(1)
    for mask in masks:
        condition = rules.of(mask.condition)
        assert condition is not None
        low, high = condition
        found = by.minimum(found, by.subtract(by.number(1), low) if mask.masked_if else high)
    return found


class _Masked:
    """The values of a kernel where a condition has a certain value."""

    def __init__(self, kernel: Kernel, condition: str, masked_if: bool) -> None:
        self.kernel = kernel
        self.values: dict[str, MaskedValue] = {condition: float(masked_if)}
        for s in kernel.body:
            if not isinstance(s, WRITES) and s.name not in self.values:
                self.values[s.name] = self._value(s) if isinstance(s, Compute) else None

    def required_maxima(self, axis: str) -> Mapping[str, float] | None:
        """Return what each row maximum must exceed for masked iterations to add nothing.

        None if they add something in any case.
        """
        least: dict[str, float] = {}
        for s in self.kernel.body:
            if not isinstance(s, Reduce) or axis not in s.over:
                continue
            found = self.values[s.arg]
            if s.op == "amax" and isinstance(found, float) and found <= GREATEST_MASKED_SCORE:
                if found != -math.inf and s.dtype is not DType.F32:
                    return None  # EXP_UNDERFLOW is that of float32
                if found != -math.inf:
                    least[s.name] = found + EXP_UNDERFLOW
            elif s.op.startswith("arg") or found != reduction_identity(s.op, s.dtype):
                return None  # the index of a masked element may be the result
        used = {v.maximum for v in self.values.values() if isinstance(v, BelowMaximum)}
        return least if used <= least.keys() else None

    def _of(self, arg: Arg) -> MaskedValue:
        if isinstance(arg, Scalar):
            return float(arg.value) if isinstance(arg.value, (int, float)) else None
        return self.values[arg]

    def _value(self, s: Compute) -> MaskedValue:
        args = [self._of(a) for a in s.args]
        match s.op, args:
            case "where", [condition, x, y]:
                if isinstance(condition, float):
                    return x if condition else y
                return x if x == y else None
            case "exp", [BelowMaximum()]:
                return 0.0
            case (("round_bf16" | "round_f16" | "convert"), [BelowMaximum() as x]):
                return x
            case "sub", [float(x), None] if not math.isinf(x):
                return self._below_maximum(s, x)
            case (("add" | "sub"), [float(x), None]) if x == -math.inf:
                return x
            case "add", [None, float(x)] if x == -math.inf:
                return x
            case "mul", [x, y] if 0.0 in (x, y) and not any(map(_is_infinite, (x, y))):
                return 0.0
            case "div", [float(x), None] if x == 0.0:
                return x
        known = [x for x in args if isinstance(x, float)]
        return _evaluate(s.op, known) if len(known) == len(args) else None

    def _below_maximum(self, s: Compute, x: float) -> MaskedValue:
        """Return x less a value if that is the maximum of what x masks, else None."""
        name = s.args[1]
        maximum = self.kernel.definitions[name] if isinstance(name, str) else None
        if not isinstance(maximum, Reduce) or maximum.op != "amax":
            return None
        is_of_masked = self.values[maximum.arg] == x
        return BelowMaximum(x, maximum.name) if is_of_masked else None


def _is_infinite(x: MaskedValue) -> bool:
    return isinstance(x, float) and math.isinf(x)


def _evaluate(op: str, x: list[float]) -> MaskedValue:
    """Return the result of an op on numbers; None if there is no rule."""
    try:
        match op, x:
            case (("round_bf16" | "round_f16" | "convert"), [a]) if a in (0.0, 1.0) or math.isinf(
                a
            ):
                return a
            case "exp", [a]:
                return math.exp(a)
            case "sigmoid", [a] if a == -math.inf:
                return 0.0
            case "add", [a, b]:
                return a + b
            case "sub", [a, b]:
                return a - b
            case "mul", [a, b]:
                return a * b
            case "div", [a, b] if b:
                return a / b
            case "lt", [a, b]:
                return float(a < b)
            case "le", [a, b]:
                return float(a <= b)
            case "gt", [a, b]:
                return float(a > b)
            case "ge", [a, b]:
                return float(a >= b)
            case "eq", [a, b]:
                return float(a == b)
            case "logical_not", [a]:
                return float(not a)
    except OverflowError:
        return None
    return None
