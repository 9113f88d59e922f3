"""The reference interpreter: each statement is one tensor over all axes of the kernel."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from typing_extensions import assert_never

from tofuse.errors import VerifyError
from tofuse.ir.affine import AffineExpr
from tofuse.ir.dims import Dim, evaluate
from tofuse.ir.kernel import (
    WRITES,
    Compute,
    Definition,
    Gather,
    InRange,
    Iota,
    Kernel,
    Load,
    Next,
    Previous,
    Reduce,
    Scan,
    Scatter,
    Store,
    Uniform,
    Write,
    show_stmt,
)
from tofuse.ir.statement import Arg
from tofuse.ir.types import DType
from tofuse.ops.indexed import checked_index, scatter_elements
from tofuse.ops.philox import (
    HALF_COUNTERS,
    HALF_WORDS,
    PHILOX_BLOCK,
    PHILOX_COUNTERS,
    philox4x32,
)
from tofuse.ops.reference import (
    REFERENCE,
    TO_TORCH,
    reduce_rows,
    scan_rows,
)
from tofuse.ops.table import NO_POSITION, reduction_identity


def run_kernel(
    kernel: Kernel,
    buffers: Mapping[str, Tensor],
    sizes: Mapping[str, int],
    *,
    precise: bool = False,
) -> None:
    """Read and write flat buffers as the kernel says; `precise` computes all floats in float64.

    Raises IndexError if a gather's index is out of range, and VerifyError if an address is outside
    its buffer.
    """
    _Interpreter(kernel, buffers, sizes, precise).run()


@dataclass(eq=False)
class _Interpreter:
    """Runs a kernel; a value is a tensor with one dimension per axis of the kernel.

    The extent is 1 for an axis that the value does not depend on.
    """

    kernel: Kernel
    buffers: Mapping[str, Tensor]
    sizes: Mapping[str, int]
    precise: bool
    values: dict[str, Tensor] = field(default_factory=dict)

    def run(self) -> None:
        for stmt in self.kernel.body:
            if isinstance(stmt, Store):
                self.store(stmt)
            elif isinstance(stmt, Scatter):
                self.scatter(stmt)
            elif stmt.name not in self.values:
                self.values[stmt.name] = self.value(stmt)

    def value(self, stmt: Definition) -> Tensor:
        """Return the value of a statement; those of a recurrence are kept, too."""
        match stmt:
            case Load():
                result = self.load(stmt)
            case Gather():
                result = self.gather(stmt)
            case Compute():
                result = self.compute(stmt)
            case Iota():
                result = self.affine(stmt.index)
            case InRange():
                result = self.in_range(stmt)
            case Uniform():
                result = self.uniform(stmt)
            case Reduce():
                result = self.reduce(stmt)
            case Scan():
                result = self.scan(stmt)
            case Previous():
                result = self.recurrence(stmt)
            case Next():
                raise AssertionError(stmt)  # its previous value was computed with it
            case _:
                assert_never(stmt)
        return result.to(self.register_dtype(stmt.dtype))

    # -- operands --------------------------------------------------------------------------------

    def register_dtype(self, dtype: DType) -> torch.dtype:
        wide = self.precise and dtype is DType.F32
        return torch.float64 if wide else TO_TORCH[dtype]

    def size(self, dim: Dim) -> int:
        return evaluate(dim, self.sizes)

    @property
    def rank(self) -> int:
        return len(self.kernel.axes)

    def affine(self, index: AffineExpr) -> Tensor:
        total = torch.full((1,) * self.rank, self.size(index.const))
        for k, axis in enumerate(self.kernel.axes):
            step = self.size(index.coefficient(axis.name))
            if step:
                along = [-1 if d == k else 1 for d in range(self.rank)]
                total = total + step * torch.arange(self.size(axis.extent)).reshape(along)
        return total

    def operand(self, arg: Arg, dtype: DType) -> Tensor:
        if isinstance(arg, str):
            return self.values[arg]
        value = arg.value
        number = value if isinstance(value, (bool, int, float)) else self.size(value)
        return torch.tensor(number, dtype=self.register_dtype(dtype))

    def guard(self, stmt: Load | Gather | InRange) -> Tensor:
        return torch.tensor(True) if stmt.guard is None else self.values[stmt.guard]

    def read_elements(self, stmt: Load | Gather, at: Tensor, passes: Tensor) -> Tensor:
        """Return the elements where `passes` is set, zero elsewhere."""
        buffer = self.buffers[stmt.buffer]
        at, passes = torch.broadcast_tensors(at, passes)
        _check(stmt, at[passes], buffer)
        if buffer.numel() == 0:
            return torch.zeros(at.shape, dtype=buffer.dtype)
        elements = buffer[torch.where(passes, at, 0)]
        return torch.where(passes, elements, torch.zeros((), dtype=buffer.dtype))

    # -- statements ------------------------------------------------------------------------------

    def load(self, stmt: Load) -> Tensor:
        return self.read_elements(stmt, self.affine(stmt.index), self.guard(stmt))

    def gather(self, stmt: Gather) -> Tensor:
        index, passes = self.values[stmt.dynamic_index], self.guard(stmt)
        extent = self.size(stmt.extent)
        if stmt.wrap:
            index = torch.where(index < 0, index + extent, index)
        outside = ((index < 0) | (index >= extent)) & passes
        # with an empty iteration space nothing is read
        empty = any(self.size(a.extent) == 0 for a in self.kernel.axes)
        if bool(outside.any()) and not empty:
            raise IndexError(f"index out of range for an extent of {extent}")
        at = self.affine(stmt.index) + index * self.size(stmt.stride)
        return self.read_elements(stmt, at, passes)

    def compute(self, stmt: Compute) -> Tensor:
        operand_dtypes = [stmt.operand_dtype] * len(stmt.args)
        if stmt.op == "where":
            operand_dtypes[0] = DType.BOOL
        args = [self.operand(a, d) for a, d in zip(stmt.args, operand_dtypes, strict=True)]
        if stmt.op in ROUNDINGS:
            return args[0].to(ROUNDINGS[stmt.op])
        if stmt.op == "convert":
            return args[0]
        return REFERENCE[stmt.op](*args)

    def in_range(self, stmt: InRange) -> Tensor:
        at = self.affine(stmt.index)
        return (at >= self.size(stmt.lo)) & (at < self.size(stmt.hi)) & self.guard(stmt)

    def uniform(self, stmt: Uniform) -> Tensor:
        """Compute `ops.philox.uniform` or `bernoulli` for single elements."""
        seed, offset = self.buffers[stmt.seed][:2].tolist()
        row, col = torch.broadcast_tensors(self.affine(stmt.row), self.affine(stmt.col))
        groups = -(-self.size(stmt.extent) // PHILOX_BLOCK)
        counters = PHILOX_COUNTERS if stmt.below is None else HALF_COUNTERS
        together = PHILOX_BLOCK // counters
        place = torch.div(col, together, rounding_mode="floor")
        counter = (row * groups * counters + place).numpy().astype(np.uint64)
        low, high = counter.astype(np.uint32), (counter >> np.uint64(32)).astype(np.uint32)
        stream = self.size(stmt.stream) & 0xFFFFFFFF
        key = (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
        words = philox4x32((low, high, offset & 0xFFFFFFFF, stream), key)
        which = (col % together).numpy()
        if stmt.below is not None:
            word = np.choose(which // 2, words) >> (which % 2 * 16).astype(np.uint32)
            return torch.as_tensor((word & np.uint32(HALF_WORDS - 1)) < stmt.below)
        bits = np.choose(which, words) >> np.uint32(8)
        return torch.as_tensor(bits.astype(np.float32)) * 2.0**-24

    def reduce(self, stmt: Reduce) -> Tensor:
        over = [k for k, a in enumerate(self.kernel.axes) if a.name in stmt.over]
        kept = [k for k in range(self.rank) if k not in over]
        rows = self.flatten_reduced(self.operand(stmt.arg, stmt.dtype), over, kept)
        if stmt.position is not None:
            positions = self.flatten_reduced(self.affine(stmt.position), over, kept)
            result = _best_position(rows, positions, stmt.op)
        elif rows.shape[-1] == 0 and stmt.op in ("amax", "amin"):
            start = reduction_identity(stmt.op, stmt.dtype)
            result = torch.full(rows.shape[:-1], start, dtype=rows.dtype)
        else:
            result = reduce_rows(stmt.op, rows, rows.dtype)
        for k in over:
            result = result.unsqueeze(k)
        return result

    def scan(self, stmt: Scan) -> Tensor:
        axis = next(k for k, a in enumerate(self.kernel.axes) if a.name == stmt.axis)
        x = self.operand(stmt.arg, stmt.dtype)
        x = x.reshape((1,) * (self.rank - x.dim()) + x.shape)
        extent = self.size(self.kernel.axes[axis].extent)
        rows = x.expand([extent if k == axis else e for k, e in enumerate(x.shape)])
        return scan_rows(stmt.op, rows.transpose(axis, -1), stmt.reverse).transpose(axis, -1)

    def recurrence(self, stmt: Previous) -> Tensor:
        """Run all steps along an axis, one after another; keep the values that they compute."""
        axis = next(k for k, a in enumerate(self.kernel.axes) if a.name == stmt.axis)
        loop = _loop_statements(self.kernel, stmt, self.values)
        found: dict[str, list[Tensor]] = {s.name: [] for s in loop}
        states = {s.name: self.operand(s.start, s.dtype) for s in loop if isinstance(s, Previous)}
        for t in range(self.size(self.kernel.extent(stmt.axis))):
            here = {
                name: x.narrow(axis, t, 1) if x.dim() and x.shape[axis] > 1 else x
                for name, x in self.values.items()
            }
            step = _Interpreter(self.kernel, self.buffers, self.sizes, self.precise, here)
            for s in loop:
                if isinstance(s, Next):
                    result = states[s.previous] = here[s.arg]
                else:
                    result = states[s.name] if isinstance(s, Previous) else step.value(s)
                here[s.name] = result.to(self.register_dtype(s.dtype))
                found[s.name].append(here[s.name])
        for name, steps in found.items():
            spread = (x.reshape((1,) * (self.rank - x.dim()) + x.shape) for x in steps)
            self.values[name] = torch.cat(torch.broadcast_tensors(*spread), axis)
        return self.values[stmt.name]

    def flatten_reduced(self, x: Tensor, over: list[int], kept: list[int]) -> Tensor:
        """Return a tensor with the reduced dimensions flattened into one, the last."""
        x = x.reshape((1,) * (self.rank - x.dim()) + x.shape)
        full = [self.size(a.extent) for a in self.kernel.axes]
        x = x.expand([full[k] if k in over else x.shape[k] for k in range(self.rank)])
        length = math.prod(full[k] for k in over)
        return x.permute(*kept, *over).reshape([x.shape[k] for k in kept] + [length])

    def store(self, stmt: Store) -> None:
        buffer = self.buffers[stmt.buffer]
        value = self.operand(stmt.value, stmt.dtype.opmath)
        at, value = torch.broadcast_tensors(self.affine(stmt.index), value)
        _check(stmt, at, buffer)
        buffer[at.reshape(-1)] = value.reshape(-1).to(buffer.dtype)

    def scatter(self, stmt: Scatter) -> None:
        """Combine elements of a buffer with values, one after another in order of the axes."""
        buffer, value = self.buffers[stmt.buffer], self.values[stmt.value]
        by = checked_index(self.values[stmt.dynamic_index], self.size(stmt.extent), stmt.wrap)
        at = self.affine(stmt.index) + by * self.size(stmt.stride)
        axes = self.kernel.axes
        points = torch.zeros([self.size(a.extent) if a.name in stmt.over else 1 for a in axes])
        at, value, _ = (x.reshape(-1) for x in torch.broadcast_tensors(at, value, points))
        _check(stmt, at, buffer)
        scatter_elements(buffer, at, value.to(buffer.dtype), stmt.op)


def _loop_statements(
    kernel: Kernel, previous: Previous, known: Mapping[str, Tensor]
) -> list[Definition]:
    """Return the statements that compute the next step of a previous value from `known` values."""
    steps = {s.previous: s for s in kernel.body if isinstance(s, Next)}
    inside: set[Definition] = set()
    work: list[Definition] = [previous]
    while work:
        s = work.pop()
        if s in inside:
            continue
        inside.add(s)
        work += (kernel.definitions[u] for u in s.uses if u not in known)
        if isinstance(s, Previous):
            work.append(steps[s.name])
    return [s for s in kernel.body if not isinstance(s, WRITES) and s in inside]


def _check(stmt: Load | Gather | Write, at: Tensor, buffer: Tensor) -> None:
    lowest, highest = (int(at.min()), int(at.max())) if at.numel() else (0, -1)
    if lowest < 0 or highest >= buffer.numel():
        raise VerifyError(
            f"addresses {lowest} to {highest} of {buffer.numel()}, in '{show_stmt(stmt)}'"
        )


def _best_position(rows: Tensor, positions: Tensor, op: str) -> Tensor:
    """Return the lowest position of the largest or smallest element; nan beats all."""
    rows, positions = torch.broadcast_tensors(rows, positions)
    if rows.shape[-1] == 0:
        return torch.full(rows.shape[:-1], NO_POSITION)
    if rows.dtype is torch.bool:
        rows = rows.to(torch.uint8)
    best = (rows.amax(-1) if op == "argmax" else rows.amin(-1)).unsqueeze(-1)
    chosen = rows == best
    if rows.is_floating_point():
        chosen = torch.where(best.isnan(), rows.isnan(), chosen)
    return torch.where(chosen, positions, NO_POSITION).amin(-1)


ROUNDINGS = {f"round_{d.value}": TO_TORCH[d] for d in DType if d.is_reduced_float}
