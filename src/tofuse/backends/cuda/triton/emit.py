"""Triton text of a tile program: one function per launch.

A function's parameters are the addresses of its buffers (or numbers, for host scalars), its size
symbols, the address of the error flag, and the number to store there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tofuse.backends.cuda.triton.device_functions import module_header
from tofuse.backends.cuda.triton.group import choose_call, group_parameters
from tofuse.backends.cuda.triton.index_space import MAX_INT32_INDEX, IndexSpace
from tofuse.backends.cuda.triton.merge_sums import Step, merge_sums
from tofuse.backends.cuda.triton.row_parts import RowEdge, WholeVectors
from tofuse.backends.cuda.triton.sides import contraction_spaces
from tofuse.backends.cuda.triton.statements import StatementEmitter
from tofuse.backends.cuda.triton.tile_reductions import Parts, ReductionEmitter
from tofuse.ir.kernel import Reduce, Scatter, Store
from tofuse.ir.tile import Tile, TileGroup, TileLoop, TileNest, TileProgram, stream_symbols
from tofuse.ir.types import DType

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
    """Emits the function of a launch, for each of `parts`: one, or two where rows are divided."""

    def __init__(self, nest: TileNest, exact: bool) -> None:
        self.nest, self.alignment = nest, nest.alignment
        self.lines: list[str] = []
        self.depth = 1
        if self.alignment is None:
            spaces = contraction_spaces(nest) if nest.contractions else [IndexSpace(nest)]
            self.index_space = spaces[0]
            self.parts = [
                StatementEmitter(nest, s, self.line, exact, "t" if s.renamed else "")
                for s in spaces
            ]
        else:
            self.index_space = WholeVectors(nest, self.alignment)
            edge = RowEdge(nest, self.alignment)
            whole = StatementEmitter(nest, self.index_space, self.line, exact)
            self.parts = [
                whole,
                StatementEmitter(nest, edge, self.line, exact, "_edge", held_by_all=True),
            ]
        self.reductions = ReductionEmitter(nest, self.parts, self.line)

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
        space, loop_tile = self.index_space, self.nest.tiling.loop_tile
        if space.needs_int64:
            self.line("pid = pid.to(tl.int64)")
        else:  # sizes are passed in 64 bits
            in_streams = stream_symbols(self.nest.kernel)
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
            if t is not loop_tile and not self._is_divided_in_loop(t):
                start = f"{space.block_number(t)} * {t.block}" if t.role == "grid" else "0"
                self._emit_index(t, start)

    def _emit_index(self, tile: Tile, start: str) -> None:
        """Emit the index and the mask of a tile whose block begins at `start`."""
        is_looped = tile is self.nest.tiling.loop_tile
        if self.alignment is not None and tile is self.alignment.tile and not is_looped:
            self._emit_row_parts()
        spaces = [self.index_space]
        if self.nest.contractions and is_looped:  # each factor has its own
            spaces = [part.index_space for part in self.parts[1:]]
        for text in dict.fromkeys(x for s in spaces for x in s.index_lines(tile, start)):
            self.line(text)

    def _emit_swizzle(self) -> None:
        """Renumber the blocks of the result, so that consecutive instances share operands."""
        space = self.index_space
        numbers = ", ".join(map(space.block_number, space.tiles))
        counts = ", ".join(map(space.block_count, space.tiles))
        width = self.nest.tiling.swizzle
        self.line(f"{numbers} = tl.swizzle2d({numbers}, {counts}, {width})")

    def _emit_row_parts(self) -> None:
        """Emit where a row's whole vectors and its edge are."""
        for part in self.parts:
            for text in part.index_space.row_lines():
                self.line(text)

    def _is_divided_in_loop(self, tile: Tile) -> bool:
        """Return whether where the rows along a tile begin depends on the iteration."""
        loop_tile, rows = self.nest.tiling.loop_tile, self.alignment
        if rows is None or loop_tile is None or tile is not rows.tile or tile is loop_tile:
            return False
        return not set(loop_tile.axes).isdisjoint(rows.start.axes)

    # -- loops -----------------------------------------------------------------------------------

    def _emit_loop(self, loop: TileLoop, k: int) -> None:
        """Emit the statements before a loop over the tile, the loop, and its reductions."""
        for step in merge_sums(loop.prologue, self.reductions.sum_key):
            self._emit_step(step, "", self.parts)
        loop_tile = self.nest.tiling.loop_tile
        if loop_tile is None or not loop.body:
            return
        in_loop: Parts = self.parts
        if self.alignment is not None and self.alignment.tile is loop_tile:
            if k == 0:
                self._emit_row_parts()
            in_loop = self.parts[:1]
        for part in self.parts[len(in_loop) :]:
            self._emit_body(loop, k, [part], self._set_operand)
        for r in loop.reductions:
            for part in self.reductions.parts_of(r, in_loop):
                self.reductions.init_accumulator(r, part)
        self._emit_loop_head(loop_tile)
        self.depth += 1
        self._emit_index(loop_tile, f"step * {loop_tile.block}")
        for t in self.nest.tiling.tiles:
            if self._is_divided_in_loop(t):
                self._emit_index(t, "0")
        self._emit_body(loop, k, in_loop, self.reductions.accumulate)
        self.depth -= 1
        for folded in merge_sums(loop.reductions, self.reductions.sum_key):
            if isinstance(folded, tuple):
                self.reductions.fold(folded, "", self.parts)

    def _emit_loop_head(self, loop_tile: Tile) -> None:
        blocks = self.index_space.block_count(loop_tile)
        first, last = "0", blocks
        if loop_tile.role == "split":
            p, splits = self.index_space.block_number(loop_tile), self.nest.tiling.splits
            self.line(f"share = ({blocks} + {splits - 1}) // {splits}")
            self.line(f"first = {p} * share")
            self.line(f"last = tl.minimum(first + share, {blocks})")
            first, last = "first", "last"
        stages = self.nest.tiling.stages
        self.line(f"for step in tl.range({first}, {last}, num_stages={stages}):")

    def _emit_body(
        self,
        loop: TileLoop,
        k: int,
        among: Parts,
        accumulate: Callable[[Reduce, StatementEmitter], None],
    ) -> None:
        """Emit the body of a loop for some parts of a row."""
        held = frozenset(loop.reductions)
        key = self.reductions.sum_key
        for step in merge_sums(loop.body, lambda r: None if r in held else key(r)):
            if isinstance(step, tuple) and step[0] in held:
                for part in self.reductions.parts_of(step[0], among):
                    accumulate(step[0], part)
            else:
                self._emit_step(step, f"_{k}", among)

    def _set_operand(self, r: Reduce, part: StatementEmitter) -> None:
        self.reductions.set_operand(r, r.name, part)

    def _emit_step(self, step: Step, suffix: str, among: Parts) -> None:
        if isinstance(step, tuple):
            self.reductions.reduce(step, suffix, among)
        elif isinstance(step, Store):
            for part in self.reductions.parts_of(step, among):
                part.store(step)
        else:
            assert not isinstance(step, Scatter)  # no kernel of a GPU has one
            for part in self.reductions.parts_of(step, among):
                self.reductions.set_name(step.name, part.define(step, suffix), [part])

    def _store_partial(self, r: Reduce) -> None:
        """Store this instance's partial result of a reduction."""
        loop_tile, space = self.nest.tiling.loop_tile, self.index_space
        assert loop_tile is not None
        p = self.nest.partials[r.name]
        axes = frozenset(p.index.axes)
        split = f"{space.block_number(loop_tile)} * {space.size(p.step)}"
        for part in self.parts if not axes.isdisjoint(self.reductions.row_axes) else self.parts[:1]:
            index = f"{split} + {part.index_space.affine(p.index)}"
            name, dtype = r.name + part.suffix, self.reductions.operand_dtype(r)
            part.write(p.buffer, index, name, axes, r.dtype)
            if p.best is not None:
                part.write(p.best, index, f"{name}_best", axes, dtype)


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
