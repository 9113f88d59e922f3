"""Sums that depend on another reduction of the same elements, and how parts of them combine.

A part is a chunk of K elements. Its sum is taken about the chunk's own mean or maximum, and
corrected when the chunks are combined, so that no large numbers cancel and none overflow:

    sum((x - mean)**2) == sum over chunks of q + K * (s / K - mean)**2
    sum(exp(x - most)) == sum over chunks of e * exp(m - most)

where a chunk has the sum s, squared deviations q, maximum m and exponentials e (Chan, Golub and
LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979;
Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Union

from tofuse.ir.dims import Dim, product
from tofuse.ir.graph import Scalar
from tofuse.ir.kernel import WRITES, Compute, Kernel, Reduce, Stmt
from tofuse.ir.statement import Arg
from tofuse.ir.types import DType


@dataclass(frozen=True)
class Variance:
    """`first` is the sum of x, `deviation` is x - mean, and `total` the sum of its squares."""

    first: Reduce
    mean_name: str
    deviation: Compute
    total: Reduce

    def in_chunk(self, first: str, size: int) -> list[Compute]:
        """Return statements for what a chunk sums, the last one; `first` is its sum of x."""
        x, _ = self.deviation.args
        mean = _compute(self.total, "mean", "div", first, Scalar(float(size)))
        deviation = replace(
            self.deviation, name=f"{self.total.name}_deviation", args=(x, mean.name)
        )
        square = _compute(self.total, "square", "mul", deviation.name, deviation.name)
        return [mean, deviation, square]

    def in_combination(self, first: str, total: str, size: int) -> list[Compute]:
        """Return statements for what chunks add, the last one, from the results of a chunk."""
        count = Scalar(float(size))
        mean = _compute(self.total, "mean", "div", first, count)
        between = _compute(self.total, "between", "sub", mean.name, self.mean_name)
        square = _compute(self.total, "square", "mul", between.name, between.name)
        weighted = _compute(self.total, "weighted", "mul", square.name, count)
        return [
            *(mean, between, square, weighted),
            _compute(self.total, "part", "add", total, weighted.name),
        ]


@dataclass(frozen=True)
class ExponentialSum:
    """`first` is the maximum of x, `difference` is x - maximum, and `total` the sum of `exp`."""

    first: Reduce
    difference: Compute
    exponential: Compute
    total: Reduce

    def in_chunk(self, first: str, size: int) -> list[Compute]:
        """Return statements for what a chunk sums, the last one; `first` is its maximum.

        A chunk of -inf alone adds nothing, as exp(-inf - most) does.
        """
        x, _ = self.difference.args
        name, dtype = self.total.name, self.total.dtype
        empty = Compute(f"{name}_empty", "eq", (first, Scalar(-math.inf)), DType.BOOL, dtype)
        difference = replace(self.difference, name=f"{name}_difference", args=(x, first))
        exponential = replace(self.exponential, name=f"{name}_exp", args=(difference.name,))
        kept = _compute(self.total, "kept", "where", empty.name, Scalar(0.0), exponential.name)
        return [empty, difference, exponential, kept]

    def in_combination(self, first: str, total: str, size: int) -> list[Compute]:
        """Return statements for what chunks add, the last one, from the results of a chunk."""
        difference = _compute(self.total, "difference", "sub", first, self.first.name)
        scale = _compute(self.total, "scale", "exp", difference.name)
        return [difference, scale, _compute(self.total, "part", "mul", total, scale.name)]


DependentSum = Union[Variance, ExponentialSum]  # noqa: UP007


def find_dependent_sums(kernel: Kernel, ready: Sequence[Reduce]) -> list[DependentSum]:
    """Return the dependent sums whose first reduction is `ready`, over axes of constant extents."""
    values: dict[Arg, Stmt] = {s.name: s for s in kernel.body if not isinstance(s, WRITES)}
    sums = [s for s in kernel.body if isinstance(s, Reduce) and s.op == "sum"]
    found = [_dependent_sum(r, product(kernel.extent(a) for a in r.over), values) for r in sums]
    return [d for d in found if d is not None and d.first in ready]


def _dependent_sum(total: Reduce, count: Dim, values: Mapping[Arg, Stmt]) -> DependentSum | None:
    """Return the dependent sum of `count` elements that `total` is, or None."""
    match summed := values[total.arg]:
        case Compute(op="mul", args=(str(name), other)) if name == other:
            difference = values[name]
        case Compute(op="exp", args=(str(name),)):
            difference = values[name]
        case _:
            return None
    match difference:
        case Compute(op="sub", args=(x, str(name))):
            center = values[name]
        case _:
            return None
    if summed.op == "exp":
        if isinstance(center, Reduce) and (center.op, center.arg) == ("amax", x):
            return ExponentialSum(center, difference, summed, total)
        return None
    assert isinstance(count, int)
    match center:
        case Compute(op="div", args=(str(name), Scalar(n))) if n == count:
            first = values[name]
        case Compute(op="mul", args=(str(name), Scalar(n))) if n == 1 / count:
            first = values[name]
        case _:
            return None
    if isinstance(first, Reduce) and (first.op, first.arg) == ("sum", x):
        return Variance(first, center.name, difference, total)
    return None


def _compute(total: Reduce, name: str, op: str, *args: Arg) -> Compute:
    """Return a statement in the type of a sum, named after it."""
    return Compute(f"{total.name}_{name}", op, args, total.dtype, total.dtype)
