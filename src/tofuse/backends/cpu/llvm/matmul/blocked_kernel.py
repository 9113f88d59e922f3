"""LLVM IR of a blocked contraction: tasks, blocks of depth, packed factors, tiles, epilogue.

The entry, its context and its functions are those of a nest of one parallel phase; see `emit.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from tofuse.backends.cpu.llvm.emit import EmitOptions, emit_slices
from tofuse.backends.cpu.llvm.matmul.gemm_context import partial_sums
from tofuse.backends.cpu.llvm.matmul.masked_vectors import element_pointer
from tofuse.backends.cpu.llvm.matmul.microkernel import ACCUMULATE
from tofuse.backends.cpu.llvm.matmul.pack import (
    WIDTH,
    line_stride,
    micropanel_elements,
    micropanel_strides,
    transposing_pack_function,
)
from tofuse.backends.cpu.llvm.matmul.product_microkernel import ProductMicrokernel
from tofuse.backends.cpu.llvm.matmul.task_emitter import TaskEmitter
from tofuse.backends.cpu.llvm.matmul.tile_microkernel import (
    configure_tiles,
    tile_configuration,
)
from tofuse.cost.thresholds import PARTIAL_PRODUCT_SUM_STEPS
from tofuse.ir.blocked import (
    PACKED_BUFFER,
    BlockedContraction,
    BlockProduct,
    tile_buffer,
)
from tofuse.ir.dims import size_hint
from tofuse.ir.schedule import Microkernel
from tofuse.ir.types import DType


def emit_blocked(blocked: BlockedContraction, options: EmitOptions) -> str:
    """Return the text of a module for one kernel."""
    kernel, microkernel = blocked.kernel, blocked.schedule.microkernel
    declarations: dict[str, str] = {}
    texts: list[str] = []
    # the microkernel flushes subnormal factors to zero, so that the packs may store zeros
    packing = replace(options, native_bf16=microkernel.dtype is DType.BF16)
    for p in blocked.products:
        for factor in (p.left, p.right):
            texts += emit_slices(factor.pack, packing, declarations)
    texts += emit_slices(blocked.epilogue, options, declarations)
    for line_major in sorted({p.left.line_major for p in blocked.products}):
        texts += _functions(blocked, line_major).texts(options, declarations)
    if any(p.right.line_major for p in blocked.products):
        name = f"@{kernel.name}.transpose"
        texts.append(transposing_pack_function(name, declarations, padded=True))
    if microkernel is Microkernel.BF16_TILES:
        texts.append(tile_configuration(f"@{kernel.name}.tiles"))
    task = _BlockEmitter(blocked)
    return task.module([*texts, task.text()], declarations)


def _functions(blocked: BlockedContraction, line_major: bool) -> ProductMicrokernel:
    """Return the microkernel of products whose left factors have one order in memory."""
    prefix = f"@{blocked.kernel.name}.micro.{'lines' if line_major else 'steps'}"
    s = blocked.schedule
    size = s.micro_rows, s.micro_columns
    return ProductMicrokernel(prefix, s.microkernel, *size, line_major, s.depth)


@dataclass(frozen=True)
class _PaddedDepth:
    """The steps of the microkernel in a block, and which elements of a line must be zeros.

    `padding` are the first of these elements and the first one after them.
    """

    steps: str
    padding: tuple[str, str] | None


class _BlockEmitter(TaskEmitter):
    """Emits the function of one thread's share of the tiles."""

    def __init__(self, blocked: BlockedContraction) -> None:
        scratch = blocked.offsets.scratch
        super().__init__(blocked.kernel, blocked.nests, blocked.block_bytes, scratch)
        self.blocked = blocked

    def text(self) -> str:
        f, kernel, schedule = self.f, self.blocked.kernel, self.blocked.schedule
        rows, columns = (self.extent(a) for a in (schedule.rows, schedule.columns))
        uses_tiles = schedule.microkernel is Microkernel.BF16_TILES
        if uses_tiles:
            configure_tiles(f, f"@{kernel.name}.tiles")
        with self._tasks(rows, columns) as (row, column):
            self.origins |= {schedule.rows: row, schedule.columns: column}
            height = self.remaining(rows, row, schedule.tile_rows)
            width = self.remaining(columns, column, schedule.tile_columns)
            for n, product in enumerate(self.blocked.products):
                self._product(n, product, height, width)
            tiles = {tile_buffer(n): self._tile(n) for n in range(len(self.blocked.products))}
            counts = {schedule.rows: height, schedule.columns: width}
            self.call(self.blocked.epilogue, {}, counts, tiles)
        if uses_tiles:
            f.call("@llvm.x86.tilerelease", "void")
        return self.finish()

    @contextmanager
    def _tasks(self, rows: str, columns: str) -> Iterator[tuple[str, str]]:
        """Emit the loop over this thread's tasks; yield the first row and column of the tile."""
        f, schedule = self.f, self.blocked.schedule
        outer = [self.extent(a) for a in self.blocked.outer]
        down = self.block_count(rows, schedule.tile_rows)
        across = self.block_count(columns, schedule.tile_columns)
        total = f.let(f"mul i64 {down}, {across}")
        for extent in outer:
            total = f.let(f"mul i64 {total}, {extent}")
        with f.loop(*self.share_of(total), "1") as task:
            rest, positions = task, []
            for extent in (down, across, *reversed(outer)):
                positions.append(f.let(f"srem i64 {rest}, {extent}"))
                rest = f.let(f"sdiv i64 {rest}, {extent}")
            self.origins |= zip(reversed(self.blocked.outer), positions[2:], strict=True)
            row = f.let(f"mul i64 {positions[0]}, {schedule.tile_rows}")
            yield row, f.let(f"mul i64 {positions[1]}, {schedule.tile_columns}")

    def _product(self, n: int, p: BlockProduct, rows: str, columns: str) -> None:
        """Add the products of all blocks of the depth to a tile."""
        f, of_task = self.f, dict(self.origins)
        schedule = self.blocked.schedule
        block_rows = schedule.micro_rows * schedule.left_micropanels
        axis, around = p.depth[p.blocked], p.depth[: p.blocked]
        with ExitStack() as loops:
            for a in around:
                self.origins[a] = loops.enter_context(f.loop("0", self.extent(a), "1"))
            first = loops.enter_context(f.loop("0", self.extent(axis), str(p.step)))
            self.origins[axis] = first
            count = self.remaining(self.extent(axis), first, p.step)
            depth = self._padded_depth(p, count)
            self._pack_right(p, columns, {axis: count}, depth)
            position = first
            for a in around:
                position = f.let(f"or i64 {position}, {self.origins[a]}")
            later = f.let(f"icmp ne i64 {position}, 0")
            flags = f.let(f"select i1 {later}, i64 {ACCUMULATE}, i64 0")
            with f.loop("0", rows, str(block_rows)) as m:
                lines = self.remaining(rows, m, block_rows)
                self._pack_left(p, m, lines, {axis: count}, depth)
                self._multiply(n, p, (m, lines), columns, depth.steps, flags)
        self.origins = of_task

    def _pack_right(
        self, p: BlockProduct, columns: str, count: Mapping[str, str], depth: _PaddedDepth
    ) -> None:
        """Pack a panel of the right factor, a micropanel at a time."""
        f, schedule, offsets = self.f, self.blocked.schedule, self.blocked.offsets
        panel, untransposed = self.at(offsets.right), self.at(offsets.untransposed)
        with f.loop("0", columns, str(WIDTH)) as j:
            width = self.remaining(columns, j, WIDTH)
            place = f.let(f"mul i64 {j}, {schedule.depth}")
            micropanel = element_pointer(f, panel, place)
            column = f.let(f"add i64 {self.origins[schedule.columns]}, {j}")
            to = untransposed if p.right.line_major else micropanel
            counts = {schedule.columns: width, **count}
            self.call(p.right.pack, {schedule.columns: column}, counts, {PACKED_BUFFER: to})
            if p.right.line_major:
                self._pad_lines(untransposed, width, depth)
                stride = line_stride(schedule.depth)
                block = f"ptr {untransposed}, i64 {stride}, i64 {width}, i64 {depth.steps}"
                helper = f"@{self.blocked.kernel.name}.transpose"
                f.put(f"call void {helper}({block}, ptr {micropanel})")

    def _pack_left(
        self, p: BlockProduct, m: str, lines: str, count: Mapping[str, str], depth: _PaddedDepth
    ) -> None:
        """Pack a block of the left factor: all lines at once, or a micropanel at a time."""
        f, schedule = self.f, self.blocked.schedule
        packed = self.at(self.blocked.offsets.left)
        row = f.let(f"add i64 {self.origins[schedule.rows]}, {m}")
        if p.left.line_major:
            counts = {schedule.rows: lines, **count}
            self.call(p.left.pack, {schedule.rows: row}, counts, {PACKED_BUFFER: packed})
            self._pad_lines(packed, lines, depth)
            return
        size = micropanel_elements(schedule.micro_rows, True, schedule.depth)
        with f.loop("0", lines, str(schedule.micro_rows)) as i:
            height = self.remaining(lines, i, schedule.micro_rows)
            number = f.let(f"sdiv i64 {i}, {schedule.micro_rows}")
            place = f.let(f"mul i64 {number}, {size}")
            micropanel = element_pointer(f, packed, place)
            counts = {schedule.rows: height, **count}
            first = f.let(f"add i64 {row}, {i}")
            self.call(p.left.pack, {schedule.rows: first}, counts, {PACKED_BUFFER: micropanel})

    def _multiply(
        self,
        n: int,
        p: BlockProduct,
        block: tuple[str, str],
        columns: str,
        depth: str,
        flags: str,
    ) -> None:
        """Multiply every micropanel of a left block with every one of a right panel.

        `block` are the first row of the left block and its number of rows.
        """
        f, blocked, schedule = self.f, self.blocked, self.blocked.schedule
        rows, width, panel_depth = schedule.micro_rows, schedule.micro_columns, schedule.depth
        stride, (m, lines) = blocked.tile_stride, block
        left, right = self.at(blocked.offsets.left), self.at(blocked.offsets.right)
        size = micropanel_elements(rows, not p.left.line_major, panel_depth)
        _, left_step = micropanel_strides(not p.left.line_major, panel_depth)
        # parts of bfloat16 have twice as many steps: shorter ones are not more exact
        part_steps = PARTIAL_PRODUCT_SUM_STEPS * schedule.microkernel.step_elements
        with ExitStack() as loops:
            j = loops.enter_context(f.loop("0", columns, str(width)))
            functions = _functions(blocked, p.left.line_major)
            microkernel = functions.function_for(f, f.let(f"sub i64 {columns}, {j}"))
            i = loops.enter_context(f.loop("0", lines, str(rows)))
            number = f.let(f"sdiv i64 {i}, {rows}")
            a = element_pointer(f, left, f.let(f"mul i64 {number}, {size}"))
            inside = f.let(f"and i64 {j}, {WIDTH - 1}")
            start = f.let(f"mul i64 {f.let(f'sub i64 {j}, {inside}')}, {panel_depth}")
            b = element_pointer(f, right, f.let(f"add i64 {start}, {inside}"))
            row = f.let(f"mul i64 {f.let(f'add i64 {m}, {i}')}, {stride}")
            c = element_pointer(f, self._tile(n), f.let(f"add i64 {row}, {j}"))
            with partial_sums(f, depth, flags, part_steps) as (k, count, part_flags):
                a_part = element_pointer(f, a, f.let(f"mul i64 {k}, {left_step}"))
                b_part = element_pointer(f, b, f.let(f"mul i64 {k}, {WIDTH}"))
                operands = f"ptr {a_part}, ptr {b_part}, i64 {count}"
                tile = f"ptr {c}, i64 {stride}, i64 {rows}, i64 {width}"
                no_bias = f"i64 {part_flags}, ptr {c}, i64 0"
                f.put(f"call void {microkernel}({operands}, {tile}, {no_bias})")

    def _padded_depth(self, p: BlockProduct, count: str) -> _PaddedDepth:
        """Return the depth of a block that has so many iterations of the blocked axis."""
        f, kernel, microkernel = self.f, self.blocked.kernel, self.blocked.schedule.microkernel
        per_step, multiple = microkernel.step_elements, microkernel.depth_multiple
        inner = math.prod(size_hint(kernel.extent(a)) for a in p.depth[p.blocked + 1 :])
        elements = f.let(f"mul i64 {count}, {inner}")
        if multiple == 1:
            return _PaddedDepth(elements, None)
        last = size_hint(kernel.extent(p.depth[p.blocked])) % p.step
        is_whole = all(n * inner % multiple == 0 for n in (p.step, last))
        rounded = f.let(f"add i64 {elements}, {multiple - 1}")
        end = f.let(f"mul i64 {f.let(f'sdiv i64 {rounded}, {multiple}')}, {multiple}")
        steps = f.let(f"sdiv i64 {end}, {per_step}")
        return _PaddedDepth(steps, None if is_whole else (elements, end))

    def _pad_lines(self, to: str, lines: str, depth: _PaddedDepth) -> None:
        """Store zeros after the last element of each line."""
        if depth.padding is None:
            return
        schedule = self.blocked.schedule
        stride = line_stride(schedule.depth) * schedule.microkernel.step_elements
        self.pad_lines(to, lines, stride, depth.padding)

    def _tile(self, n: int) -> str:
        return self.at(self.blocked.offsets.tiles[n])
