"""Triton text of the statements other than reductions."""

from __future__ import annotations

from collections.abc import Callable

from typing_extensions import assert_never

from tofuse.analysis.footprint import widest_element
from tofuse.backends.cuda.triton.elementwise import (
    TRITON_TYPES,
    constant_expression,
    elementwise_expression,
)
from tofuse.backends.cuda.triton.half_math import SINES, half_function
from tofuse.backends.cuda.triton.index_space import IndexSpace
from tofuse.backends.cuda.triton.random import uniform_expression
from tofuse.ir.affine import AffineExpr
from tofuse.ir.dims import SymDim
from tofuse.ir.kernel import (
    Compute,
    Definition,
    Gather,
    InRange,
    Iota,
    Load,
    Next,
    Previous,
    Reduce,
    Scan,
    Store,
    Uniform,
    iteration_axes,
)
from tofuse.ir.statement import Arg
from tofuse.ir.tile import TileNest
from tofuse.ir.types import DType


class StatementEmitter:
    """Emits lines of text. `names` maps values to the variables that hold them.

    The names of variables end in `suffix`. With `held_by_all`, all warps hold each block, that of a
    part of a row: all must have read it before one of them writes over it.
    """

    def __init__(
        self,
        nest: TileNest,
        space: IndexSpace,
        line: Callable[[str], None],
        exact: bool,
        suffix: str = "",
        held_by_all: bool = False,
    ) -> None:
        self.exact, self.suffix, self.held_by_all = exact, suffix, held_by_all
        self.has_read = False  # since the last barrier
        self.nest, self.index_space, self.line = nest, space, line
        self.value_axes, self.statement_axes = iteration_axes(nest.kernel)
        self.names: dict[str, str] = {}
        self.value_dtypes = {name: s.dtype for name, s in nest.kernel.definitions.items()}
        self.roles = {b.name: b.role for b in nest.kernel.buffers}
        self.buffer_dtypes = {b.name: b.dtype for b in nest.kernel.buffers}

    def define(self, stmt: Definition, suffix: str) -> str:
        """Emit the line that computes a value into a variable named after it; return its name."""
        name = stmt.name + suffix + self.suffix
        match stmt:
            case Load():
                text = self.load(stmt)
            case Gather():
                text = self.gather(stmt, name)
            case Compute():
                text = self.compute(stmt)
            case Iota():
                text = self.affine_value(stmt.index, stmt.dtype)
            case InRange():
                text = self.in_range(stmt)
            case Uniform():
                axes, widest = self.value_axes[stmt.name], widest_element(self.nest.kernel)
                text = uniform_expression(self.index_space, stmt, self.seed(stmt), axes, widest)
            case Reduce() | Scan() | Previous() | Next():
                raise AssertionError(stmt)
            case _:
                assert_never(stmt)
        self.line(f"{name} = {text}")
        return name

    # -- values ----------------------------------------------------------------------------------

    def arg(self, arg: Arg, dtype: DType) -> str:
        if isinstance(arg, str):
            return self.names[arg]
        value = arg.value
        if isinstance(value, SymDim):
            return f"({self.index_space.size(value)}).to({TRITON_TYPES[dtype]})"
        return constant_expression(value, dtype)

    def affine_value(self, index: AffineExpr, dtype: DType) -> str:
        """Return an affine expression as a value."""
        if not index.terms and isinstance(index.const, int):
            return constant_expression(index.const, dtype)
        return f"({self.index_space.affine(index)}).to({TRITON_TYPES[dtype]})"

    def compute(self, stmt: Compute) -> str:
        operand_dtypes = [stmt.operand_dtype] * len(stmt.args)
        if stmt.op == "where":
            operand_dtypes[0] = DType.BOOL
        args = [self.arg(a, d) for a, d in zip(stmt.args, operand_dtypes, strict=True)]
        if stmt.rounds_to is not None and not self.exact:
            is_block = self.index_space.is_block(self.value_axes[stmt.name])
            if is_block or stmt.op not in SINES:
                return f"{half_function(stmt.op, stmt.rounds_to)}({args[0]})"
        return elementwise_expression(
            stmt.op, args, stmt.operand_dtype, stmt.dtype, exact=self.exact
        )

    def in_range(self, stmt: InRange) -> str:
        at = self.affine_value(stmt.index, DType.I64 if self.index_space.needs_int64 else DType.I32)
        low, high = self.index_space.size(stmt.lo), self.index_space.size(stmt.hi)
        guard = "" if stmt.guard is None else f" & {self.names[stmt.guard]}"
        return f"({at} >= {low}) & ({at} < {high}){guard}"

    def seed(self, stmt: Uniform) -> tuple[str, str]:
        """Return the two words of a seed."""
        seed = stmt.seed
        if self.roles[seed] == "host":
            first, second = (f"_seed_word({seed}_{k}, {seed}_2, {k})" for k in range(2))
            return first, second
        return f"tl.load({seed})", f"tl.load({seed} + 1)"

    # -- memory ----------------------------------------------------------------------------------

    def load(self, stmt: Load) -> str:
        if self.roles[stmt.buffer] == "host":
            value = f"{stmt.buffer}_0.to({TRITON_TYPES[stmt.dtype]})"
            if stmt.guard is None:
                return value
            value = f"tl.where({self.names[stmt.guard]}, {value}, 0)"
            return f"{value}.to({TRITON_TYPES[stmt.dtype]})"
        return self.read(stmt, self.index_space.address(stmt.index), frozenset(stmt.index.axes))

    def read(self, stmt: Load | Gather, index: str, axes: frozenset[str]) -> str:
        """Return a masked load at an index that depends on these axes."""
        self.has_read = True
        masks = self.index_space.masks(axes)
        guarded = axes
        if stmt.guard is not None:
            masks.append(self.names[stmt.guard])
            guarded = axes | self.value_axes[stmt.guard]
            masks += [m for m in self.index_space.masks(guarded) if m not in masks]
        shape = self.index_space.shape(guarded)
        is_scalar_index = self.index_space.is_block(guarded) and not self.index_space.is_block(axes)
        if is_scalar_index or shape != self.index_space.shape(axes):
            index = f"tl.zeros({shape}, tl.int32) + {index}"
        mask = f", mask={' & '.join(masks)}, other=0" if masks else ""
        value = f"tl.load({stmt.buffer} + {index}{mask})"
        memory = self.buffer_dtypes[stmt.buffer]
        if memory is DType.BOOL:
            return f"{value} != 0"
        if memory.is_fp8:
            return f"_decode_{memory.value}({value})"
        return f"{value}.to({TRITON_TYPES[stmt.dtype]})" if memory is not stmt.dtype else value

    def gather(self, stmt: Gather, name: str) -> str:
        """Emit the check of a gather's index and return the load; out of range it sets the flag."""
        space = self.index_space
        by, extent = f"{name}_by", space.size(stmt.extent)
        self.line(f"{by} = {self.names[stmt.dynamic_index]}")
        if stmt.wrap:
            self.line(f"{by} = tl.where({by} < 0, {by} + {extent}, {by})")
        guard_axes = self.value_axes[stmt.guard] if stmt.guard else frozenset()
        index_axes = self.value_axes[stmt.dynamic_index] | guard_axes
        # the check depends on the index's axes alone, so other axes do not repeat it
        masks = space.masks(index_axes) + ([self.names[stmt.guard]] if stmt.guard else [])
        invalid = f"{name}_bad"
        self.line(f"{invalid} = ({by} < 0) | ({by} >= {extent})")
        reported = " & ".join([invalid, *masks])
        if space.is_block(index_axes):
            reported = f"tl.broadcast_to({reported}, {space.shape(index_axes)})"
        self.line(f"{invalid} = {reported}")
        flag = f"flag + {invalid}.to(tl.int32) * 0"
        self.line(f"tl.store({flag}, number.to(tl.int32), mask={invalid})")
        in_range = f"({by} >= 0) & ({by} < {extent})"
        cast = "" if space.needs_int64 else ".to(tl.int32)"
        self.line(f"{by} = tl.where({in_range}, {by}, 0){cast}")
        axes = frozenset(stmt.index.axes) | self.value_axes[stmt.dynamic_index]
        index = f"({space.affine(stmt.index)} + {by} * {space.size(stmt.stride)})"
        return self.read(stmt, index, axes)

    def store(self, stmt: Store) -> None:
        dtype = stmt.dtype
        value = self.arg(stmt.value, dtype.opmath)
        axes = frozenset(stmt.index.axes)
        assert self.index_space.shape(self.statement_axes[stmt]) == self.index_space.shape(axes)
        self.write(stmt.buffer, self.index_space.address(stmt.index), value, axes, dtype)

    def write(
        self, buffer: str, index: str, value: str, axes: frozenset[str], dtype: DType
    ) -> None:
        """Emit a masked store; only the first program instance that has the value stores it."""
        space = self.index_space
        masks = space.masks(axes)
        tiles = {space.tile_of[a] for a in axes}
        for t in self.nest.tiling.tiles:
            if t.role == "grid" and t not in tiles:
                masks.append(f"({space.block_number(t)} == 0)")
        if space.rank and not space.is_block(axes):
            index = f"tl.zeros({space.shape(())}, tl.int32) + {index}"
        if dtype.is_fp8:
            stored = f"_encode_{dtype.value}({value})"
        else:
            stored = f"{value}.to({'tl.int8' if dtype is DType.BOOL else TRITON_TYPES[dtype]})"
        mask = f", mask={' & '.join(masks)}" if masks else ""
        if self.held_by_all and self.has_read and self.nest.tiling.warps > 1:
            self.line("tl.debug_barrier()")
            self.has_read = False
        self.line(f"tl.store({buffer} + {index}, {stored}{mask})")
