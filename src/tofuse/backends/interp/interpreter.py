"""Run a kernel without a schedule: every statement as one tensor over the kernel's axes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from typing_extensions import assert_never

from tofuse.errors import VerifyError
from tofuse.ir.dims import Dim, evaluate
from tofuse.ir.kernel import (
    AffineExpr,
    Arg,
    Compute,
    Gather,
    InRange,
    Iota,
    Kernel,
    Load,
    Reduce,
    Store,
    Uniform,
    show_stmt,
)
from tofuse.ir.types import DType
from tofuse.ops.philox import GROUP, LANES, philox4x32
from tofuse.ops.reference import REDUCE, REFERENCE, TO_TORCH


def run_kernel(
    kernel: Kernel,
    buffers: Mapping[str, Tensor],
    sizes: Mapping[str, int],
    *,
    precise: bool = False,
) -> None:
    """Read and write flat buffers as the kernel says. `precise` computes all floats in float64.

    Raises IndexError where a gather's index is out of range, and VerifyError where an address
    lies outside its buffer.
    """
    _Run(kernel, buffers, sizes, precise).run()


@dataclass(eq=False)
class _Run:
    """A value is a tensor with one dimension for each axis of the kernel, of extent 1 where it
    does not depend on that axis."""

    kernel: Kernel
    buffers: Mapping[str, Tensor]
    sizes: Mapping[str, int]
    precise: bool
    values: dict[str, Tensor] = field(default_factory=dict)

    def run(self) -> None:
        for stmt in self.kernel.body:
            match stmt:
                case Load():
                    result = self.load(stmt)
                case Gather():
                    result = self.take(stmt)
                case Compute():
                    result = self.compute(stmt)
                case Iota():
                    result = self.index(stmt.index)
                case InRange():
                    result = self.inside(stmt)
                case Uniform():
                    result = self.uniform(stmt)
                case Reduce():
                    result = self.reduce(stmt)
                case Store():
                    self.store(stmt)
                    continue
                case _:
                    assert_never(stmt)
            self.values[stmt.name] = result.to(self.register(stmt.dtype))

    # -- parts of statements ---------------------------------------------------------------------

    def register(self, dtype: DType) -> torch.dtype:
        wide = self.precise and dtype is DType.F32
        return torch.float64 if wide else TO_TORCH[dtype]

    def size(self, dim: Dim) -> int:
        return evaluate(dim, self.sizes)

    @property
    def rank(self) -> int:
        return len(self.kernel.axes)

    def index(self, index: AffineExpr) -> Tensor:
        total = torch.full((1,) * self.rank, self.size(index.const))
        for k, axis in enumerate(self.kernel.axes):
            step = self.size(index.coefficient(axis.name))
            if step:
                along = [-1 if d == k else 1 for d in range(self.rank)]
                total = total + step * torch.arange(self.size(axis.extent)).reshape(along)
        return total

    def arg(self, arg: Arg, dtype: DType) -> Tensor:
        if isinstance(arg, str):
            return self.values[arg]
        value = arg.value
        number = value if isinstance(value, (bool, int, float)) else self.size(value)
        return torch.tensor(number, dtype=self.register(dtype))

    def guard(self, stmt: Load | Gather | InRange) -> Tensor:
        return torch.tensor(True) if stmt.guard is None else self.values[stmt.guard]

    def read(self, stmt: Load | Gather, at: Tensor, good: Tensor) -> Tensor:
        """The elements where `good`, zero elsewhere."""
        buffer = self.buffers[stmt.buffer]
        at, good = torch.broadcast_tensors(at, good)
        _check(stmt, at[good], buffer)
        if buffer.numel() == 0:
            return torch.zeros(at.shape, dtype=buffer.dtype)
        found = buffer[torch.where(good, at, 0)]
        return torch.where(good, found, torch.zeros((), dtype=buffer.dtype))

    # -- statements ------------------------------------------------------------------------------

    def load(self, stmt: Load) -> Tensor:
        return self.read(stmt, self.index(stmt.index), self.guard(stmt))

    def take(self, stmt: Gather) -> Tensor:
        by, good, extent = self.values[stmt.dynamic_index], self.guard(stmt), self.size(stmt.extent)
        if stmt.wrap:
            by = torch.where(by < 0, by + extent, by)
        outside = ((by < 0) | (by >= extent)) & good
        # a statement that no point of the iteration space reaches reads nothing
        empty = any(self.size(a.extent) == 0 for a in self.kernel.axes)
        if bool(outside.any()) and not empty:
            raise IndexError(f"index out of range for an extent of {extent}")
        return self.read(stmt, self.index(stmt.index) + by * self.size(stmt.stride), good)

    def compute(self, stmt: Compute) -> Tensor:
        of = [stmt.operand_dtype] * len(stmt.args)
        if stmt.op == "where":
            of[0] = DType.BOOL
        args = [self.arg(a, d) for a, d in zip(stmt.args, of, strict=True)]
        if stmt.op in ROUNDINGS:
            return args[0].to(ROUNDINGS[stmt.op])
        if stmt.op == "convert":
            return args[0]
        return REFERENCE[stmt.op](*args)

    def inside(self, stmt: InRange) -> Tensor:
        at = self.index(stmt.index)
        return (at >= self.size(stmt.lo)) & (at < self.size(stmt.hi)) & self.guard(stmt)

    def uniform(self, stmt: Uniform) -> Tensor:
        """The definition of `ops.philox.uniform`, for single elements."""
        seed, offset = self.buffers[stmt.seed][:2].tolist()
        row, col = torch.broadcast_tensors(self.index(stmt.row), self.index(stmt.col))
        groups = -(-self.size(stmt.extent) // GROUP)
        group = row * groups + torch.div(col, GROUP, rounding_mode="floor")
        counter = (group * LANES + col % LANES).numpy().astype(np.uint64)
        low, high = counter.astype(np.uint32), (counter >> np.uint64(32)).astype(np.uint32)
        stream = self.size(stmt.stream) & 0xFFFFFFFF
        key = (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
        words = philox4x32((low, high, offset & 0xFFFFFFFF, stream), key)
        which = (col // LANES % 4).numpy()
        bits = np.choose(which, words) >> np.uint32(8)
        return torch.as_tensor(bits.astype(np.float32)) * 2.0**-24

    def reduce(self, stmt: Reduce) -> Tensor:
        over = [k for k, a in enumerate(self.kernel.axes) if a.name in stmt.over]
        kept = [k for k in range(self.rank) if k not in over]
        rows = self.rows(self.arg(stmt.arg, stmt.dtype), over, kept)
        if stmt.position is not None:
            places = self.rows(self.index(stmt.position), over, kept)
            result = _best_place(rows, places, stmt.op)
        elif rows.shape[-1] == 0 and stmt.op in ("amax", "amin"):
            result = torch.full(rows.shape[:-1], _identity(stmt.op, rows.dtype), dtype=rows.dtype)
        else:
            result = REDUCE[stmt.op](rows, rows.dtype)
        for k in over:
            result = result.unsqueeze(k)
        return result

    def rows(self, x: Tensor, over: list[int], kept: list[int]) -> Tensor:
        """The dimensions that are reduced as one, the last."""
        x = x.reshape((1,) * (self.rank - x.dim()) + x.shape)
        full = [self.size(a.extent) for a in self.kernel.axes]
        x = x.expand([full[k] if k in over else x.shape[k] for k in range(self.rank)])
        length = math.prod(full[k] for k in over)
        return x.permute(*kept, *over).reshape([x.shape[k] for k in kept] + [length])

    def store(self, stmt: Store) -> None:
        buffer = self.buffers[stmt.buffer]
        value = self.arg(stmt.value, DType.F32 if stmt.dtype.is_reduced_float else stmt.dtype)
        at, value = torch.broadcast_tensors(self.index(stmt.index), value)
        _check(stmt, at, buffer)
        buffer[at.reshape(-1)] = value.reshape(-1).to(buffer.dtype)


def _check(stmt: Load | Gather | Store, at: Tensor, buffer: Tensor) -> None:
    least, most = (int(at.min()), int(at.max())) if at.numel() else (0, -1)
    if least < 0 or most >= buffer.numel():
        raise VerifyError(
            f"addresses {least} to {most} of {buffer.numel()}, in '{show_stmt(stmt)}'"
        )


def _best_place(rows: Tensor, places: Tensor, op: str) -> Tensor:
    """The lowest of the places of the largest or smallest element; nan beats all."""
    rows, places = torch.broadcast_tensors(rows, places)
    if rows.shape[-1] == 0:
        return torch.full(rows.shape[:-1], 2**62)
    if rows.dtype is torch.bool:
        rows = rows.to(torch.uint8)
    best = (rows.amax(-1) if op == "argmax" else rows.amin(-1)).unsqueeze(-1)
    chosen = (rows == best) | (rows.isnan() if rows.is_floating_point() else False)
    if rows.is_floating_point():
        chosen = torch.where(best.isnan(), rows.isnan(), chosen)
    return torch.where(chosen, places, 2**62).amin(-1)


def _identity(op: str, dtype: torch.dtype) -> float | int | bool:
    if dtype is torch.bool:
        return op == "amin"
    if dtype.is_floating_point:
        return -math.inf if op == "amax" else math.inf
    return torch.iinfo(dtype).min if op == "amax" else torch.iinfo(dtype).max


ROUNDINGS = {
    "round_bf16": torch.bfloat16,
    "round_f16": torch.float16,
    "round_f8e4m3": torch.float8_e4m3fn,
    "round_f8e5m2": torch.float8_e5m2,
}
