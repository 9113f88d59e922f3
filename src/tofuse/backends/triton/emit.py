"""Triton text of a tile program: one function per launch.

A function's parameters are the addresses of its buffers (or numbers, for host scalars), its size
symbols, the address of the error flag, and the number to store there.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from tofuse.backends.triton.device_functions import module_header
from tofuse.backends.triton.elementwise import TRITON_TYPES
from tofuse.backends.triton.group import choose_call, group_parameters
from tofuse.backends.triton.index_space import MAX_INT32_INDEX
from tofuse.backends.triton.merge_sums import MergedSums, Step, merge_sums
from tofuse.backends.triton.reduce import combine_expression, identity, reduce_line, sums_line
from tofuse.backends.triton.sides import Sides
from tofuse.ir.dims import symbols_of
from tofuse.ir.kernel import Reduce, Store, Uniform
from tofuse.ir.tile import (
    Tile,
    TileGroup,
    TileLoop,
    TileNest,
    TileProgram,
)
from tofuse.ir.types import DType
from tofuse.ops.table import NO_POSITION

SEED_NUMBERS = 3


def emit(program: TileProgram, *, exact: bool = False) -> str:
    """Return the text of a module; its function `k<k>` is launch k of the program.

    `exact` rounds quotients as eager does.
    """
    return _module(
        _KernelEmitter(nest, exact).run(k, launch_parameters(nest), ["pid = tl.program_id(0)"])
        for k, nest in enumerate(program.nests)
    )


def emit_group(group: TileGroup, *, exact: bool = False) -> str:
    """Return the text of a module whose function `k<k>` is launch k of all calls of a group."""
    functions = []
    for k, nest in enumerate(group.program.nests):
        one = launch_parameters(nest)
        parameters = group_parameters(one, nest.kernel.symbols, len(group.sizes))
        first_lines = choose_call(group, k, one)
        functions.append(_KernelEmitter(nest, exact).run(k, parameters, first_lines))
    return _module(functions)


def _module(functions: Iterable[str]) -> str:
    """Return the text of a module with the functions and what they call."""
    text = "\n\n".join(functions)
    return f"{module_header(text)}\n\n{text}"


def launch_parameters(nest: TileNest) -> list[tuple[str, str]]:
    """Return the name and the Triton type of each parameter of a launch; each has 8 bytes."""
    found = []
    for b in nest.kernel.buffers:
        if b.role != "host":
            found.append((b.name, f"*{_POINTER_TYPES[b.dtype]}"))
            continue
        for k in range(host_scalar_count(nest, b.name)):
            found.append((f"{b.name}_{k}", "fp64" if b.dtype.is_float else "i64"))
    found += [(s, "i64") for s in nest.kernel.symbols]
    return [*found, ("flag", "*i32"), ("number", "i64")]


def host_scalar_count(nest: TileNest, buffer: str) -> int:
    """Return how many numbers of a host buffer a launch takes.

    A seed has two words, and the address of both or zero: they are in GPU memory, not in the
    CPU's, while a CUDA graph is captured.
    """
    return SEED_NUMBERS if buffer in nest.kernel.seeds else 1


class _KernelEmitter:
    def __init__(self, nest: TileNest, exact: bool) -> None:
        self.nest = nest
        self.lines: list[str] = []
        self.sides = Sides(nest, self.line, exact)
        self.index_space = self.sides.result.index_space
        self.depth = 1

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def run(self, number: int, parameters: Sequence[tuple[str, str]], start: list[str]) -> str:
        """Return the text of function `k<number>`; `start` sets `pid`, the program instance."""
        names = ", ".join(name for name, _ in parameters)
        for text in start:
            self.line(text)
        self._emit_tile_indices()
        for k, loop in enumerate(self.nest.loops):
            self._emit_loop(loop, k)
        for r in (r for p in self.nest.loops for r in p.reductions):
            if r.name in self.nest.partials:
                self._store_partial(r)
        body = self.lines or ["    pass"]
        return "\n".join(["@triton.jit", f"def k{number}({names}):", *body, ""])

    # -- indices ---------------------------------------------------------------------------------

    def _emit_tile_indices(self) -> None:
        """Emit this instance's block number in each tile, and indices of tiles outside the loop."""
        space, loop_tile = self.index_space, self.nest.loop_tile
        if space.needs_int64:
            self.line("pid = pid.to(tl.int64)")
        else:  # sizes are passed in 64 bits
            streams = {s.stream for s in self.nest.kernel.body if isinstance(s, Uniform)}
            in_streams = {symbol for stream in streams for symbol in symbols_of(stream)}
            for symbol, bound in self.nest.bounds.items():
                if symbol not in in_streams and bound < MAX_INT32_INDEX:
                    self.line(f"{symbol} = {symbol}.to(tl.int32)")
        program_tiles = [t for t in self.nest.tiling.tiles if t.role in ("grid", "split")]
        for t in reversed(program_tiles):
            count = space.block_count(t) if t.role == "grid" else str(self.nest.tiling.splits)
            if t is program_tiles[0]:
                self.line(f"{space.block_number(t)} = pid")
            else:
                self.line(f"{space.block_number(t)} = pid % ({count})")
                self.line(f"pid = pid // ({count})")
        if self.nest.tiling.swizzle > 1:
            self._emit_swizzle()
        for t in self.nest.tiling.tiles:
            if t is not loop_tile:
                start = f"{space.block_number(t)} * {t.block}" if t.role == "grid" else "0"
                self._emit_index(t, start)

    def _emit_swizzle(self) -> None:
        """Renumber the blocks of the result, so that consecutive instances share operands."""
        space = self.index_space
        numbers = ", ".join(map(space.block_number, space.tiles))
        counts = ", ".join(map(space.block_count, space.tiles))
        width = self.nest.tiling.swizzle
        self.line(f"{numbers} = tl.swizzle2d({numbers}, {counts}, {width})")

    def _emit_index(self, tile: Tile, start: str) -> None:
        """Emit the indices and masks of a tile whose block begins at `start`."""
        int64 = "tl.full([], 0, tl.int64) + " if self.index_space.needs_int64 else ""
        self.line(f"{self.index_space.start(tile)} = {int64}{start}")
        for space in self.sides.spaces_with(tile):
            self.line(f"{space.index(tile)} = {space.arange(tile)}")
            if space.is_masked(tile):
                extent = space.size(self.nest.extent(tile))
                self.line(f"{space.mask(tile)} = {space.index(tile)} < {extent}")

    # -- loops -----------------------------------------------------------------------------------

    def _emit_loop(self, loop: TileLoop, k: int) -> None:
        """Emit the statements before a loop over the tile, the loop, and its reductions."""
        for step in merge_sums(loop.prologue, self._sum_key):
            self._emit_step(step, "")
        loop_tile = self.nest.loop_tile
        if loop_tile is None or not loop.body:
            return
        for r in loop.reductions:
            self._init_accumulator(r)
        space = self.index_space
        blocks = space.block_count(loop_tile)
        if loop_tile.role == "loop":
            first, last = "0", blocks
        else:
            p, splits = space.block_number(loop_tile), self.nest.tiling.splits
            self.line(f"share = ({blocks} + {splits - 1}) // {splits}")
            self.line(f"first = {p} * share")
            self.line(f"last = tl.minimum(first + share, {blocks})")
            first, last = "first", "last"
        stages = self.nest.tiling.stages
        self.line(f"for step in tl.range({first}, {last}, num_stages={stages}):")
        self.depth += 1
        self._emit_index(loop_tile, f"step * {loop_tile.block}")
        accumulated = frozenset(loop.reductions)
        for step in merge_sums(loop.body, lambda r: None if r in accumulated else self._sum_key(r)):
            if isinstance(step, Reduce) and step in accumulated:
                self._accumulate(step)
            else:
                self._emit_step(step, f"_{k}")
        self.depth -= 1
        for folded in merge_sums(loop.reductions, self._sum_key):
            if isinstance(folded, tuple):
                self._fold_sums([(r, r.name) for r in folded])
            elif isinstance(folded, Reduce):
                self._fold(folded, folded.name)

    def _emit_step(self, step: Step, suffix: str) -> None:
        if isinstance(step, tuple):
            self._reduce_sums(step, suffix)
        elif isinstance(step, Reduce):
            self._reduce(step, suffix)
        elif isinstance(step, Store):
            self.sides.of(step).store(step)
        else:
            self.sides.define(step, suffix)

    # -- reductions ------------------------------------------------------------------------------

    def _reduction_operand(self, r: Reduce) -> tuple[str, str | None]:
        """Return the argument over its whole tile, identities outside extents, and positions."""
        side, dtype = self.sides.of(r), self._operand_dtype(r)
        space = side.index_space
        shape = space.shape(side.value_axes[r.arg] | frozenset(r.over))
        arg = side.names[r.arg]
        if dtype is DType.BOOL:
            arg = f"{arg}.to(tl.int32)"
        masks = space.masks(r.over)
        if masks:
            arg = f"tl.where({' & '.join(masks)}, {arg}, {identity(r.op, dtype)})"
        arg = space.broadcast(arg, shape)
        if r.position is None:
            return arg, None
        position = f"({space.affine(r.position)}).to(tl.int64)"
        if masks:
            position = f"tl.where({' & '.join(masks)}, {position}, {NO_POSITION})"
        return arg, space.broadcast(position, shape)

    def _operand_dtype(self, r: Reduce) -> DType:
        """Return the dtype of what is compared or added."""
        value_dtypes = self.sides.result.value_dtypes
        return value_dtypes[r.arg] if r.position is not None else r.dtype

    def _register_type(self, r: Reduce) -> str:
        dtype = self._operand_dtype(r)
        return "tl.int32" if dtype is DType.BOOL else TRITON_TYPES[dtype]

    def _reduce(self, r: Reduce, suffix: str) -> None:
        """Reduce a value that is not computed in a loop."""
        arg, position = self._reduction_operand(r)
        name = r.name + suffix
        if position is None:
            self.line(f"{name} = {arg}")
        else:
            self.line(f"{name} = {position}")
            self.line(f"{name}_best = {arg}")
        self._fold(r, name)

    def _reduce_sums(self, sums: MergedSums, suffix: str) -> None:
        """Compute sums over the same axes, which no loop computes, by one reduction."""
        for r in sums:
            self.line(f"{r.name}{suffix} = {self._reduction_operand(r)[0]}")
        self._fold_sums([(r, r.name + suffix) for r in sums])

    def _sum_key(self, r: Reduce) -> Hashable | None:
        """Return what sums must share to be one reduction, or None for other reductions."""
        if r.op != "sum" or not r.dtype.is_float or r in self.sides.contraction_of:
            return None
        side = self.sides.of(r)
        shape = side.index_space.shape(side.value_axes[r.arg] | frozenset(r.over))
        return frozenset(r.over), shape, r.dtype

    def _fold_sums(self, sums: Sequence[tuple[Reduce, str]]) -> None:
        """Reduce tiles in registers, of sums over the same axes, to their results."""
        first = sums[0][0]
        over = frozenset(first.over)
        for dimension, t in enumerate(self.sides.of(first).index_space.tiles):
            if not over.isdisjoint(t.axes):
                self.line(sums_line([name for _, name in sums], dimension))
        for r, name in sums:
            self._finish_fold(r, name)

    def _fold(self, r: Reduce, name: str) -> None:
        """Reduce a tile in registers to the result; a matrix product is one already."""
        if r in self.sides.contraction_of:
            self.sides.rename(r.name, name)
            return
        for dimension, t in enumerate(self.sides.of(r).index_space.tiles):
            if not set(t.axes).isdisjoint(r.over):
                self.line(reduce_line(r, name, dimension, self._operand_dtype(r)))
        self._finish_fold(r, name)

    def _finish_fold(self, r: Reduce, name: str) -> None:
        """Convert a reduced tile to the dtype of the result."""
        self.sides.rename(r.name, name)
        if r.position is None and r.dtype is DType.BOOL:
            self.line(f"{name} = {name} != 0")
        elif r.position is None:
            self.line(f"{name} = {name}.to({TRITON_TYPES[r.dtype]})")

    def _init_accumulator(self, r: Reduce) -> None:
        """Set the accumulator of a reduction to the identity."""
        side = self.sides.of(r)
        axes = side.value_axes[r.name] if r in self.sides.contraction_of else side.statement_axes[r]
        shape = side.index_space.shape(axes)
        start = identity(r.op, self._operand_dtype(r))
        first = f"tl.full({shape}, {start}, {self._register_type(r)})"
        if r.position is None:
            self.line(f"{r.name} = {first}")
        else:
            self.line(f"{r.name} = tl.full({shape}, {NO_POSITION}, tl.int64)")
            self.line(f"{r.name}_best = {first}")

    def _accumulate(self, r: Reduce) -> None:
        """Combine the current block into the accumulator of a reduction."""
        if r in self.sides.contraction_of:
            self.line(f"{r.name} = {self.sides.dot(self.sides.contraction_of[r])}")
            return
        arg, position = self._reduction_operand(r)
        if position is None:
            total = combine_expression(r.op, r.name, arg, self._operand_dtype(r))
            self.line(f"{r.name} = {total}.to({self._register_type(r)})")
        else:
            best = f"{r.name}_best"
            self.line(f"{best}, {r.name} = _{r.op}({best}, {r.name}, {arg}, {position})")

    def _store_partial(self, r: Reduce) -> None:
        """Store this instance's partial result of a reduction."""
        loop_tile, space = self.nest.loop_tile, self.index_space
        assert loop_tile is not None
        p = self.nest.partials[r.name]
        index = f"{space.block_number(loop_tile)} * {space.size(p.step)} + {space.affine(p.index)}"
        axes = frozenset(p.index.axes)
        write = self.sides.result.write
        write(p.buffer, index, r.name, axes, r.dtype)
        if p.best is not None:
            write(p.best, index, f"{r.name}_best", axes, self._operand_dtype(r))


_POINTER_TYPES = {
    DType.F64: "fp64",
    DType.F32: "fp32",
    DType.F16: "fp16",
    DType.BF16: "bf16",
    DType.F8E4M3: "u8",  # as bytes
    DType.F8E5M2: "u8",
    DType.I64: "i64",
    DType.I32: "i32",
    DType.I16: "i16",
    DType.I8: "i8",
    DType.U8: "u8",
    DType.BOOL: "i8",  # a byte that is 0 or 1
}
