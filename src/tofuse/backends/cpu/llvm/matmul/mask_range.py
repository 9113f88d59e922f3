"""LLVM IR that finds which iterations of an axis masks leave to a block of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tofuse.analysis.intervals import GREAT, UNKNOWN, Interval, IntervalRules
from tofuse.analysis.masked_values import may_matter
from tofuse.analysis.reachability import reachable
from tofuse.backends.cpu.llvm.matmul.gemm_context import minimum
from tofuse.backends.cpu.llvm.matmul.pack import WIDTH
from tofuse.backends.cpu.llvm.matmul.task_emitter import TaskEmitter
from tofuse.ir.dims import Dim
from tofuse.ir.kernel import Kernel, Load, iteration_axes
from tofuse.ir.mask import Mask
from tofuse.ir.types import DType


def emit_range(
    task: TaskEmitter, masks: Sequence[Mask], rows: str, height: str, first: str, end: str
) -> None:
    """Store the first iteration that masks leave, and the one after the last, into two addresses.

    The block begins at the current row and has `height` rows. The two stored numbers are multiples
    of WIDTH, or the end of the axis. If masks leave nothing, they are those of the first
    WIDTH iterations, so that a result is what masked numbers give.
    """
    f, axis = task.f, masks[0].axis
    extent = task.extent(axis)
    row = task.origins[rows]
    last_row = f.let(f"sub i64 {f.let(f'add i64 {row}, {height}')}, 1")
    axes = {a: Interval(i, i) for a, i in task.origins.items()} | {rows: Interval(row, last_row)}
    f.put(f"store i64 {extent}, ptr {first}")
    f.put(f"store i64 0, ptr {end}")
    arithmetic = _Operands(task, axes)
    of_rows = IntervalRules(task.kernel, axes, arithmetic)
    for name in _without_masked_axis(task.kernel, masks):
        of_rows.of(name)
    with f.loop("0", extent, str(WIDTH)) as position:
        width = task.remaining(extent, position, WIDTH)
        last = f.let(f"sub i64 {f.let(f'add i64 {position}, {width}')}, 1")
        arithmetic.axes = {**axes, axis: Interval(position, last)}
        rules = IntervalRules(task.kernel, arithmetic.axes, arithmetic)
        rules.known |= of_rows.known
        found = f.let(f"icmp ne i64 {may_matter(masks, rules)}, 0")
        with f.if_then(found):
            old = f.let(f"load i64, ptr {first}")
            smaller = f.call("@llvm.smin.i64", "i64", ("i64", old), ("i64", position))
            f.put(f"store i64 {smaller}, ptr {first}")
            f.put(f"store i64 {f.let(f'add i64 {position}, {width}')}, ptr {end}")
    is_empty = f.let(f"icmp eq i64 {f.let(f'load i64, ptr {end}')}, 0")
    with f.if_then(is_empty):
        f.put(f"store i64 0, ptr {first}")
        f.put(f"store i64 {task.remaining(extent, '0', WIDTH)}, ptr {end}")


def _without_masked_axis(kernel: Kernel, masks: Sequence[Mask]) -> list[str]:
    """Return the values that conditions need and that do not depend on the masked axis."""
    value_axes, _ = iteration_axes(kernel)
    definitions = kernel.definitions
    conditions = [definitions[m.condition] for m in masks]
    needed = reachable(conditions, lambda d: [definitions[u] for u in d.uses])
    names = [name for name, d in definitions.items() if d in needed]
    return [name for name in names if masks[0].axis not in value_axes[name]]


class _Operands:
    """Arithmetic on operands of i64. `axes` has the interval of each axis."""

    def __init__(self, task: TaskEmitter, axes: Mapping[str, Interval[str]]) -> None:
        self.task, self.f, self.axes = task, task.f, axes

    def number(self, value: int) -> str:
        return str(value)

    def size(self, dim: Dim) -> str:
        return self.task.size(dim)

    def add(self, x: str, y: str) -> str:
        return self.f.let(f"add i64 {x}, {y}")

    def subtract(self, x: str, y: str) -> str:
        return self.f.let(f"sub i64 {x}, {y}")

    def multiply(self, x: str, y: str) -> str:
        return self.f.let(f"mul i64 {x}, {y}")

    def minimum(self, x: str, y: str) -> str:
        return minimum(self.f, x, y)

    def maximum(self, x: str, y: str) -> str:
        return self.f.call("@llvm.smax.i64", "i64", ("i64", x), ("i64", y))

    def is_less(self, x: str, y: str) -> str:
        return self.f.let(f"zext i1 {self.f.let(f'icmp slt i64 {x}, {y}')} to i64")

    def select(self, condition: str, x: str, y: str) -> str:
        is_true = self.f.let(f"icmp ne i64 {condition}, 0")
        return self.f.let(f"select i1 {is_true}, i64 {x}, i64 {y}")

    def loaded(self, load: Load) -> Interval[str]:
        """Return the least and the greatest number that a block loads, along one axis at most."""
        f, along = self.f, [a for a in load.index.axes if self.axes[a].low != self.axes[a].high]
        if not along:
            x = self._load(load, {a: x.low for a, x in self.axes.items()})
            return self._widened(Interval(x, x))
        (axis,) = along
        low, high = f.alloca("i64"), f.alloca("i64")
        f.put(f"store i64 {2**63 - 1}, ptr {low}")
        f.put(f"store i64 {-(2**63)}, ptr {high}")
        last = f.let(f"add i64 {self.axes[axis].high}, 1")
        with f.loop(self.axes[axis].low, last, "1") as position:
            x = self._load(load, {a: i.low for a, i in self.axes.items()} | {axis: position})
            f.put(f"store i64 {self.minimum(f.let(f'load i64, ptr {low}'), x)}, ptr {low}")
            f.put(f"store i64 {self.maximum(f.let(f'load i64, ptr {high}'), x)}, ptr {high}")
        return self._widened(
            Interval(f.let(f"load i64, ptr {low}"), f.let(f"load i64, ptr {high}"))
        )

    def _widened(self, x: Interval[str]) -> Interval[str]:
        """Return an interval of all numbers in place of one with a great number."""
        is_great = self.maximum(self.is_less(x.low, str(-GREAT)), self.is_less(str(GREAT), x.high))
        return Interval(
            self.select(is_great, str(-UNKNOWN), x.low), self.select(is_great, str(UNKNOWN), x.high)
        )

    def _load(self, load: Load, indices: Mapping[str, str]) -> str:
        """Load a number as an i64."""
        f, place = self.f, self.size(load.index.const)
        for axis, step in load.index.terms:
            place = self.add(place, self.multiply(self.size(step), indices[axis]))
        dtype = next(b.dtype for b in self.task.kernel.buffers if b.name == load.buffer)
        ty = f"i{8 * dtype.itemsize}"
        address = f.let(f"getelementptr {ty}, ptr {self.task.buffers[load.buffer]}, i64 {place}")
        x = f.let(f"load {ty}, ptr {address}")
        if dtype is DType.BOOL:
            return f.let(f"zext i1 {f.let(f'icmp ne {ty} {x}, 0')} to i64")
        if ty == "i64":
            return x
        return f.let(f"{'zext' if dtype is DType.U8 else 'sext'} {ty} {x} to i64")
