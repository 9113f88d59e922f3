"""Kernel -> Kernel: unroll short axes that are interleaved with a long one.

Examples are the pairs of a rotation, the colors of pixels and the corners of boxes. Vectors then
run along the long axis, and the body has one copy of each statement for every iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tofuse.analysis.live_statements import live_statements
from tofuse.cost.thresholds import (
    ITERATIONS_PER_EXCLUSION,
    MAX_KERNEL_STATEMENTS,
    MAX_SHORT_ROW,
    MAX_SHUFFLES_PER_LANE,
    MAX_UNROLLED_AXIS_EXTENT,
    MAX_UNROLLED_STATEMENTS,
    MIN_GUARDS,
    MIN_VECTOR_EXTENT,
)
from tofuse.ir.affine import AffineExpr, make_affine
from tofuse.ir.dims import size_hint
from tofuse.ir.graph import Scalar
from tofuse.ir.interleave import is_interleaved, shuffle_count
from tofuse.ir.kernel import (
    CARRIED,
    WRITES,
    Compute,
    Gather,
    InRange,
    Kernel,
    Load,
    Reduce,
    Scatter,
    Stmt,
    Store,
    Uniform,
    iteration_axes,
)
from tofuse.ir.schedule import Target
from tofuse.ir.statement import StatementMap
from tofuse.ops.table import REDUCTION_COMBINES


def unroll_axes(kernel: Kernel, target: Target) -> Kernel:
    """Return the kernel with the interleaved axes unrolled where that is profitable."""
    if target.lanes == 1:
        return kernel
    rejected: set[str] = set()
    while (found := _interleaved_axis(kernel, rejected)) is not None:
        axis, step = found
        short = step <= MAX_SHORT_ROW or size_hint(kernel.extent(axis)) <= MAX_UNROLLED_AXIS_EXTENT
        profitable = short or _is_reduced_repeatedly(kernel, axis, step, target)
        unrolled = _unroll_axis(kernel, axis, profitable)
        if unrolled is None:
            rejected.add(axis)
        else:
            kernel = unrolled
    return kernel


def _interleaved_axis(kernel: Kernel, rejected: set[str]) -> tuple[str, int] | None:
    """Return an axis that some access interleaves with a long axis, and the long axis's stride."""
    for s in kernel.body:
        if isinstance(s, (Load, Store)):
            for along in s.index.axes:
                if size_hint(kernel.extent(along)) >= MIN_VECTOR_EXTENT:
                    for axis in s.index.axes:
                        if axis not in rejected and is_interleaved(kernel, s.index, axis, along):
                            return axis, size_hint(s.index.coefficient(along))
    return None


def _is_reduced_repeatedly(kernel: Kernel, axis: str, step: int, target: Target) -> bool:
    """Whether several reductions run over a contiguous row that is cheap to transpose.

    Shuffles that transpose the row then cost less than one horizontal reduction per vector.
    """
    count = size_hint(kernel.extent(axis))
    reductions = sum(1 for s in kernel.body if isinstance(s, Reduce) and axis in s.over)
    accesses = [s.index for s in kernel.body if isinstance(s, (Load, Store))]
    contiguous = all(index.coefficient(axis) == 1 for index in accesses if axis in index.axes)
    full_row = count == step <= 2 * target.lanes
    cheap = count * shuffle_count(count) <= MAX_SHUFFLES_PER_LANE * target.lanes
    return reductions > 1 and contiguous and full_row and cheap


def _unroll_axis(kernel: Kernel, axis: str, profitable: bool) -> Kernel | None:
    """Return the kernel with an axis unrolled; None if that is impossible or too long.

    If it is not `profitable` otherwise, it still is if guards select a different formula in each
    iteration, as in a stack of the nine elements of a rotation.
    """
    _, stmt_axes = iteration_axes(kernel)
    inside = [s for s in kernel.body if axis in stmt_axes[s]]
    if any(isinstance(s, Uniform) for s in inside):
        return None
    if any(isinstance(s, (*CARRIED, Scatter)) for s in inside):
        return None
    if any(isinstance(s, Reduce) and s.position is not None for s in inside):
        return None
    count = len(inside) * size_hint(kernel.extent(axis)) + len(kernel.body) - len(inside)
    guards = [s for s in inside if isinstance(s, InRange) and s.index.axes == (axis,)]
    if count > MAX_UNROLLED_STATEMENTS:
        return None
    if not profitable and not _guards_exclude_iterations(guards, kernel, axis):
        return None
    limit = MAX_KERNEL_STATEMENTS if profitable else min(MAX_KERNEL_STATEMENTS, count // 2)
    if not any(isinstance(s, InRange) for s in inside):  # all copies are live
        count -= sum(isinstance(s, Reduce) and axis in s.over for s in inside)
        if count > limit:
            return None
    unrolled = _Unroller(kernel, axis).kernel()
    return unrolled if len(unrolled.body) <= limit else None


def _guards_exclude_iterations(guards: Sequence[InRange], kernel: Kernel, axis: str) -> bool:
    """Whether guards exclude enough iterations of an axis that each runs another formula."""
    count = size_hint(kernel.extent(axis))
    excluded = 0
    for s in guards:
        first, step = size_hint(s.index.const), size_hint(s.index.coefficient(axis))
        passing = range(size_hint(s.lo), size_hint(s.hi))
        excluded += sum(first + k * step not in passing for k in range(count))
    return len(guards) >= MIN_GUARDS and excluded * ITERATIONS_PER_EXCLUSION >= len(guards) * count


@dataclass
class _Unroller:
    """Unroll one axis.

    For each iteration, `names` maps a value to its copy, and `known_guards` has the guards whose
    result is known.
    """

    old: Kernel
    axis: str
    body: list[Stmt] = field(default_factory=list)

    def __post_init__(self) -> None:
        count = self.old.extent(self.axis)
        assert isinstance(count, int)
        self.names: list[dict[str, str]] = [{} for _ in range(count)]
        self.known_guards: list[dict[str, bool]] = [{} for _ in range(count)]

    def kernel(self) -> Kernel:
        """Return the kernel without the axis."""
        _, stmt_axes = iteration_axes(self.old)
        for s in self.old.body:
            if self.axis not in stmt_axes[s]:
                self.body.append(s)
            elif isinstance(s, Reduce) and self.axis in s.over:
                self._combine_iterations(s)
            else:
                for k in range(len(self.names)):
                    self._unroll_statement(s, k)
        axes = tuple(a for a in self.old.axes if a.name != self.axis)
        return replace(self.old, axes=axes, body=tuple(live_statements(self.body)))

    def _unroll_statement(self, s: Stmt, k: int) -> None:
        """Append the copy of a statement for iteration `k`."""
        guard = s.guard if isinstance(s, (Load, Gather, InRange)) else None
        passes = True if guard is None else self.known_guards[k].get(guard)
        if isinstance(s, WRITES):
            self.body.append(s.map(self._iteration(k)))
            return
        if isinstance(s, InRange):
            self._evaluate_guard(s, k, passes)
        if isinstance(s, Compute) and s.op == "where" and s.args[0] in self.known_guards[k]:
            selected = s.args[1 if self.known_guards[k][str(s.args[0])] else 2]
            if isinstance(selected, str):
                self.names[k][s.name] = self.names[k].get(selected, selected)
                return
            s = replace(s, args=(Scalar(True), selected, selected))  # the other operand is dead
        self.names[k][s.name] = name = f"{s.name}_{k}"
        if isinstance(s, (Load, Gather)) and passes is False:
            zero = Scalar(0.0 if s.dtype.is_float else 0)
            args = (Scalar(True), zero, zero)
            self.body.append(Compute(name, "where", args, s.dtype, s.dtype))
            return
        if passes and isinstance(s, (Load, Gather, InRange)):
            s = replace(s, guard=None)
        self.body.append(replace(s.map(self._iteration(k)), name=name))

    def _combine_iterations(self, s: Reduce) -> None:
        """Append a tree of pairs over all iterations, and the reduction over the other axes."""
        operands = [names.get(s.arg, s.arg) for names in self.names]
        over, op = tuple(a for a in s.over if a != self.axis), REDUCTION_COMBINES[s.op]
        prefix = f"{s.name}_{self.axis}"  # unique if several axes of the reduction are unrolled
        adds_zero = s.op == "sum" and s.dtype.is_float and not over
        root = s.name if not over and not adds_zero else prefix
        number = 0
        while len(operands) > 1:
            pairs = [operands[k : k + 2] for k in range(0, len(operands), 2)]
            operands = []
            for pair in pairs:
                name = pair[0]
                if len(pair) == 2:
                    name = root if len(pairs) == 1 else f"{prefix}_{number}"
                    number += 1
                    self.body.append(Compute(name, op, tuple(pair), s.dtype, s.dtype))
                operands.append(name)
        if over:
            self.body.append(replace(s, arg=operands[0], over=over))
        elif adds_zero:
            args = (operands[0], Scalar(0.0))
            self.body.append(Compute(s.name, "add", args, s.dtype, s.dtype))

    def _evaluate_guard(self, s: InRange, k: int, outer_passes: bool | None) -> None:
        """Record the result of a guard in iteration `k` if it is known."""
        index = self._index_at(s.index, k)
        passes: bool | None = None
        if not index.terms and all(isinstance(d, int) for d in (index.const, s.lo, s.hi)):
            passes = size_hint(s.lo) <= size_hint(index.const) < size_hint(s.hi)
        if passes is False or outer_passes is False:
            self.known_guards[k][s.name] = False
        elif passes and outer_passes:
            self.known_guards[k][s.name] = True

    def _index_at(self, index: AffineExpr, k: int) -> AffineExpr:
        rest = [(a, c) for a, c in index.terms if a != self.axis]
        return make_affine(rest, index.const + index.coefficient(self.axis) * k)

    def _iteration(self, k: int) -> StatementMap:
        """Return the map from a statement to its copy for iteration `k`."""
        names = self.names[k]
        return StatementMap(
            index=lambda index: self._index_at(index, k), value=lambda name: names.get(name, name)
        )
