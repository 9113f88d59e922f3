"""Statements other than reductions, as lines of Triton."""

from __future__ import annotations

from collections.abc import Callable

from typing_extensions import assert_never

from tofuse.backends.triton.elementwise import TRITON, constant, elementwise
from tofuse.backends.triton.random import uniform
from tofuse.backends.triton.space import Space
from tofuse.ir.dims import SymDim
from tofuse.ir.kernel import (
    AffineExpr,
    Arg,
    Compute,
    Definition,
    Gather,
    InRange,
    Iota,
    Load,
    Reduce,
    Store,
    Uniform,
    iteration_axes,
)
from tofuse.ir.tile import TileNest
from tofuse.ir.types import DType


class Statements:
    """Appends lines; `names` are the variables that hold values now."""

    def __init__(
        self, nest: TileNest, space: Space, line: Callable[[str], None], exact: bool
    ) -> None:
        self.exact = exact
        self.nest, self.space, self.line = nest, space, line
        self.axes, self.runs = iteration_axes(nest.kernel)
        self.names: dict[str, str] = {}
        self.kinds = {s.name: s.dtype for s in nest.kernel.body if not isinstance(s, Store)}
        self.roles = {b.name: b.role for b in nest.kernel.buffers}
        self.memory = {b.name: b.dtype for b in nest.kernel.buffers}

    def bind(self, stmt: Definition, name: str) -> None:
        self.names[stmt.name] = name

    def define(self, stmt: Definition, suffix: str) -> None:
        """The line that computes a value into the variable of its name."""
        name = stmt.name + suffix
        match stmt:
            case Load():
                text = self.load(stmt)
            case Gather():
                text = self.take(stmt, name)
            case Compute():
                text = self.compute(stmt)
            case Iota():
                text = self.whole(stmt.index, stmt.dtype)
            case InRange():
                text = self.inside(stmt)
            case Uniform():
                text = uniform(self.space, stmt, self.seed(stmt), self.axes[stmt.name])
            case Reduce():
                raise AssertionError(stmt)
            case _:
                assert_never(stmt)
        self.bind(stmt, name)
        self.line(f"{name} = {text}")

    # -- numbers ---------------------------------------------------------------------------------

    def arg(self, arg: Arg, dtype: DType) -> str:
        if isinstance(arg, str):
            return self.names[arg]
        value = arg.value
        if isinstance(value, SymDim):
            return f"({self.space.dim(value)}).to({TRITON[dtype]})"
        return constant(value, dtype)

    def whole(self, index: AffineExpr, dtype: DType) -> str:
        """An affine function as a value."""
        if not index.terms and isinstance(index.const, int):
            return constant(index.const, dtype)
        return f"({self.space.affine(index)}).to({TRITON[dtype]})"

    def compute(self, stmt: Compute) -> str:
        of = [stmt.operand_dtype] * len(stmt.args)
        if stmt.op == "where":
            of[0] = DType.BOOL
        args = [self.arg(a, d) for a, d in zip(stmt.args, of, strict=True)]
        return elementwise(stmt.op, args, stmt.operand_dtype, stmt.dtype, exact=self.exact)

    def inside(self, stmt: InRange) -> str:
        at = self.whole(stmt.index, DType.I64 if self.space.wide else DType.I32)
        low, high = self.space.dim(stmt.lo), self.space.dim(stmt.hi)
        guard = "" if stmt.guard is None else f" & {self.names[stmt.guard]}"
        return f"({at} >= {low}) & ({at} < {high}){guard}"

    def seed(self, stmt: Uniform) -> tuple[str, str]:
        if self.roles[stmt.seed] == "host":
            return f"{stmt.seed}_0", f"{stmt.seed}_1"
        return f"tl.load({stmt.seed})", f"tl.load({stmt.seed} + 1)"

    # -- memory ----------------------------------------------------------------------------------

    def load(self, stmt: Load) -> str:
        if self.roles[stmt.buffer] == "host":
            value = f"{stmt.buffer}_0.to({TRITON[stmt.dtype]})"
            return self._guarded(value, stmt)
        return self.read(stmt, self.space.affine(stmt.index), frozenset(stmt.index.axes))

    def _guarded(self, value: str, stmt: Load) -> str:
        if stmt.guard is None:
            return value
        return f"tl.where({self.names[stmt.guard]}, {value}, 0).to({TRITON[stmt.dtype]})"

    def read(self, stmt: Load | Gather, index: str, axes: frozenset[str]) -> str:
        """A masked load of what stands at an index that depends on these axes."""
        masks = self.space.masks(axes)
        guarded = axes
        if stmt.guard is not None:
            masks.append(self.names[stmt.guard])
            guarded = axes | self.axes[stmt.guard]
            masks += [m for m in self.space.masks(guarded) if m not in masks]
        shape = self.space.shape(guarded)
        number = self.space.spread(guarded) and not self.space.spread(axes)
        if number or shape != self.space.shape(axes):
            index = f"tl.zeros({shape}, tl.int32) + {index}"
        mask = f", mask={' & '.join(masks)}, other=0" if masks else ""
        value = f"tl.load({stmt.buffer} + {index}{mask})"
        memory = self.memory[stmt.buffer]
        if memory is DType.BOOL:
            return f"{value} != 0"
        if memory.is_fp8:
            return f"_decode_{memory.value}({value})"
        return f"{value}.to({TRITON[stmt.dtype]})" if memory is not stmt.dtype else value

    def take(self, stmt: Gather, name: str) -> str:
        space = self.space
        by, extent = f"{name}_by", space.dim(stmt.extent)
        self.line(f"{by} = {self.names[stmt.dynamic_index]}")
        if stmt.wrap:
            self.line(f"{by} = tl.where({by} < 0, {by} + {extent}, {by})")
        own = self.axes[stmt.dynamic_index] | (self.axes[stmt.guard] if stmt.guard else frozenset())
        # where this is done again for other axes, only one of those reports
        masks = space.masks(own) + ([self.names[stmt.guard]] if stmt.guard else [])
        bad = f"{name}_bad"
        self.line(f"{bad} = ({by} < 0) | ({by} >= {extent})")
        reported = " & ".join([bad, *masks])
        at = f"tl.broadcast_to({reported}, {space.shape(own)})" if space.spread(own) else reported
        self.line(f"{bad} = {at}")
        self.line(f"tl.store(flag + {bad}.to(tl.int32) * 0, number.to(tl.int32), mask={bad})")
        inside = f"({by} >= 0) & ({by} < {extent})"
        wide = "" if space.wide else ".to(tl.int32)"
        self.line(f"{by} = tl.where({inside}, {by}, 0){wide}")
        axes = frozenset(stmt.index.axes) | self.axes[stmt.dynamic_index]
        index = f"({space.affine(stmt.index)} + {by} * {space.dim(stmt.stride)})"
        return self.read(stmt, index, axes)

    def store(self, stmt: Store) -> None:
        dtype = stmt.dtype
        register = DType.F32 if dtype.is_reduced_float else dtype
        value = self.arg(stmt.value, register)
        axes = frozenset(stmt.index.axes)
        assert self.space.shape(self.runs[stmt]) == self.space.shape(axes)
        self.write(stmt.buffer, self.space.affine(stmt.index), value, axes, dtype)

    def write(
        self, buffer: str, index: str, value: str, axes: frozenset[str], dtype: DType
    ) -> None:
        """A masked store, done by one program where several have the value."""
        space = self.space
        masks = space.masks(axes)
        tiles = {space.of[a] for a in axes}
        for t in self.nest.tiling.tiles:
            if t.role == "grid" and t not in tiles:
                masks.append(f"({space.program(t)} == 0)")
        if space.rank and not space.spread(axes):
            index = f"tl.zeros({space.shape(())}, tl.int32) + {index}"
        if dtype.is_fp8:
            stored = f"_encode_{dtype.value}({value})"
        else:
            stored = f"{value}.to({'tl.int8' if dtype is DType.BOOL else TRITON[dtype]})"
        mask = f", mask={' & '.join(masks)}" if masks else ""
        self.line(f"tl.store({buffer} + {index}, {stored}{mask})")
