"""LLVM IR of a blocked contraction: tasks, blocks of depth, packed factors, tiles, epilogue.

The entry, its context and its functions are those of a nest of one parallel phase; see `emit.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from tofuse.backends.cpu.llvm.emit import NONTEMPORAL_METADATA, EmitOptions, emit_slices
from tofuse.backends.cpu.llvm.entry import (
    context_word,
    context_words,
    entry_function,
    worker_function,
)
from tofuse.backends.cpu.llvm.ir_text import ALIGNED_STACK, FunctionBuilder, size_operand
from tofuse.backends.cpu.llvm.matmul.blocked_microkernels import microkernel_for, microkernel_texts
from tofuse.backends.cpu.llvm.matmul.gemm_context import minimum, partial_sums
from tofuse.backends.cpu.llvm.matmul.masked_vectors import element_pointer
from tofuse.backends.cpu.llvm.matmul.microkernel import ACCUMULATE
from tofuse.backends.cpu.llvm.matmul.pack import (
    WIDTH,
    line_stride,
    micropanel_elements,
    micropanel_strides,
    transposing_pack_function,
)
from tofuse.backends.cpu.llvm.matmul.tile_microkernel import (
    configure_tiles,
    tile_configuration,
)
from tofuse.cost.thresholds import PARTIAL_PRODUCT_SUM_STEPS
from tofuse.ir.blocked import (
    PACKED_BUFFER,
    BlockedContraction,
    BlockProduct,
    first_index,
    iterations,
    tile_buffer,
)
from tofuse.ir.dims import size_hint
from tofuse.ir.kernel import Gather, Kernel
from tofuse.ir.nest import Nest
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
    texts += microkernel_texts(blocked, options, declarations)
    if any(p.right.line_major for p in blocked.products):
        name = f"@{kernel.name}.transpose"
        texts.append(transposing_pack_function(name, declarations, padded=True))
    if microkernel is Microkernel.BF16_TILES:
        texts.append(tile_configuration(f"@{kernel.name}.tiles"))
    task = _TaskEmitter(blocked)
    texts.append(task.text())
    declarations |= task.f.declarations
    texts.append(worker_function(kernel, 0, declarations))
    texts.append(entry_function(kernel, [(True, False)], declarations))
    return "\n".join([*declarations.values(), "", *texts, NONTEMPORAL_METADATA])


@dataclass(frozen=True)
class _PaddedDepth:
    """The steps of the microkernel in a block, and which elements of a line must be zeros.

    `padding` are the first of these elements and the first one after them.
    """

    steps: str
    padding: tuple[str, str] | None


@dataclass(eq=False)
class _LocalContext:
    """The context of a nest, on the stack; `slots` are the addresses of its words by name."""

    base: str
    slots: Mapping[str, str]
    status: str


@dataclass(eq=False)
class _TaskEmitter:
    """Emits the function of one thread's share of the tasks.

    `origins` are the first indices of the current block, by axis.
    """

    blocked: BlockedContraction
    f: FunctionBuilder = field(default_factory=FunctionBuilder)
    origins: dict[str, str] = field(default_factory=dict)

    def text(self) -> str:
        f, kernel, schedule = self.f, self.blocked.kernel, self.blocked.schedule
        self.buffers = {b.name: context_word(f, k, "ptr") for k, b in enumerate(kernel.buffers)}
        first = len(kernel.buffers)
        self.sizes = {s: context_word(f, k) for k, s in enumerate(kernel.symbols, first)}
        workspace = context_word(f, context_words(kernel) - 3, "ptr")
        start = f.let(f"mul i64 %share, {self.blocked.block_bytes}")
        self.workspace = f.let(f"getelementptr i8, ptr {workspace}, i64 {start}")
        self.contexts = {nest: self._local_context(nest.kernel) for nest in self.blocked.nests}
        rows, columns = (self._extent(a) for a in (schedule.rows, schedule.columns))
        uses_tiles = schedule.microkernel is Microkernel.BF16_TILES
        if uses_tiles:
            configure_tiles(f, f"@{kernel.name}.tiles")
        with self._tasks(rows, columns) as (row, column):
            self.origins |= {schedule.rows: row, schedule.columns: column}
            height = self._remaining(rows, row, schedule.tile_rows)
            width = self._remaining(columns, column, schedule.tile_columns)
            for n, product in enumerate(self.blocked.products):
                self._product(n, product, height, width)
            tiles = {tile_buffer(n): self._tile(n) for n in range(len(self.blocked.products))}
            counts = {schedule.rows: height, schedule.columns: width}
            self._call(self.blocked.epilogue, {}, counts, tiles)
        if uses_tiles:
            f.call("@llvm.x86.tilerelease", "void")
        self._report_status()
        head = f"define void @{kernel.name}.slice0(ptr %context, i64 %share, i64 %shares)"
        return f.text(f"{head} noinline nounwind {ALIGNED_STACK}")

    @contextmanager
    def _tasks(self, rows: str, columns: str) -> Iterator[tuple[str, str]]:
        """Emit the loop over this thread's tasks; yield the first row and column of the tile."""
        f, schedule = self.f, self.blocked.schedule
        outer = [self._extent(a) for a in self.blocked.outer]
        down = self._tile_count(rows, schedule.tile_rows)
        across = self._tile_count(columns, schedule.tile_columns)
        total = f.let(f"mul i64 {down}, {across}")
        for extent in outer:
            total = f.let(f"mul i64 {total}, {extent}")
        first = f.let(f"sdiv i64 {f.let(f'mul i64 {total}, %share')}, %shares")
        after = f.let("add i64 %share, 1")
        last = f.let(f"sdiv i64 {f.let(f'mul i64 {total}, {after}')}, %shares")
        with f.loop(first, last, "1") as task:
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
                self.origins[a] = loops.enter_context(f.loop("0", self._extent(a), "1"))
            first = loops.enter_context(f.loop("0", self._extent(axis), str(p.step)))
            self.origins[axis] = first
            count = self._remaining(self._extent(axis), first, p.step)
            depth = self._padded_depth(p, count)
            self._pack_right(p, columns, {axis: count}, depth)
            position = first
            for a in around:
                position = f.let(f"or i64 {position}, {self.origins[a]}")
            later = f.let(f"icmp ne i64 {position}, 0")
            flags = f.let(f"select i1 {later}, i64 {ACCUMULATE}, i64 0")
            with f.loop("0", rows, str(block_rows)) as m:
                lines = self._remaining(rows, m, block_rows)
                self._pack_left(p, m, lines, {axis: count}, depth)
                self._multiply(n, p, (m, lines), columns, depth.steps, flags)
        self.origins = of_task

    def _pack_right(
        self, p: BlockProduct, columns: str, count: Mapping[str, str], depth: _PaddedDepth
    ) -> None:
        """Pack a panel of the right factor, a micropanel at a time."""
        f, schedule, offsets = self.f, self.blocked.schedule, self.blocked.offsets
        panel, untransposed = self._at(offsets.right), self._at(offsets.untransposed)
        with f.loop("0", columns, str(WIDTH)) as j:
            width = self._remaining(columns, j, WIDTH)
            place = f.let(f"mul i64 {j}, {schedule.depth}")
            micropanel = element_pointer(f, panel, place)
            column = f.let(f"add i64 {self.origins[schedule.columns]}, {j}")
            to = untransposed if p.right.line_major else micropanel
            counts = {schedule.columns: width, **count}
            self._call(p.right.pack, {schedule.columns: column}, counts, {PACKED_BUFFER: to})
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
        packed = self._at(self.blocked.offsets.left)
        row = f.let(f"add i64 {self.origins[schedule.rows]}, {m}")
        if p.left.line_major:
            counts = {schedule.rows: lines, **count}
            self._call(p.left.pack, {schedule.rows: row}, counts, {PACKED_BUFFER: packed})
            self._pad_lines(packed, lines, depth)
            return
        size = micropanel_elements(schedule.micro_rows, True, schedule.depth)
        with f.loop("0", lines, str(schedule.micro_rows)) as i:
            height = self._remaining(lines, i, schedule.micro_rows)
            number = f.let(f"sdiv i64 {i}, {schedule.micro_rows}")
            place = f.let(f"mul i64 {number}, {size}")
            micropanel = element_pointer(f, packed, place)
            counts = {schedule.rows: height, **count}
            first = f.let(f"add i64 {row}, {i}")
            self._call(p.left.pack, {schedule.rows: first}, counts, {PACKED_BUFFER: micropanel})

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
        left, right = self._at(blocked.offsets.left), self._at(blocked.offsets.right)
        size = micropanel_elements(rows, not p.left.line_major, panel_depth)
        _, left_step = micropanel_strides(not p.left.line_major, panel_depth)
        # parts of bfloat16 have twice as many steps: shorter ones are not more exact
        part_steps = PARTIAL_PRODUCT_SUM_STEPS * schedule.microkernel.step_elements
        with ExitStack() as loops:
            j = loops.enter_context(f.loop("0", columns, str(width)))
            microkernel = microkernel_for(f, blocked, p, f.let(f"sub i64 {columns}, {j}"))
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
        f = self.f
        if depth.padding is None:
            return
        schedule = self.blocked.schedule
        stride = line_stride(schedule.depth) * schedule.microkernel.step_elements
        with f.loop("0", lines, "1") as line, f.loop(*depth.padding, "1") as k:
            place = f.let(f"add i64 {f.let(f'mul i64 {line}, {stride}')}, {k}")
            f.put(f"store i16 0, ptr {f.let(f'getelementptr i16, ptr {to}, i64 {place}')}")

    # -- nests of blocks -------------------------------------------------------------------------

    def _local_context(self, kernel: Kernel) -> _LocalContext:
        """Make the context of a nest, with the words that are the same in every call."""
        f = self.f
        words = context_words(kernel)
        base = f.alloca(f"[{words} x i64]")
        names = [*(b.name for b in kernel.buffers), *kernel.symbols, "", "", ""]
        addresses = [f.let(f"getelementptr i64, ptr {base}, i64 {k}") for k in range(words)]
        slots = {name: a for name, a in zip(names, addresses, strict=True) if name}
        for name, slot in slots.items():
            if name in self.buffers:
                f.put(f"store ptr {self.buffers[name]}, ptr {slot}")
            elif name in self.sizes:
                f.put(f"store i64 {self.sizes[name]}, ptr {slot}")
        scratch, threads, status = addresses[-3:]
        f.put(f"store ptr {self._at(self.blocked.offsets.scratch)}, ptr {scratch}")
        f.put(f"store i64 1, ptr {threads}")
        f.put(f"store i64 0, ptr {status}")
        return _LocalContext(base, slots, status)

    def _call(
        self,
        nest: Nest,
        origins: Mapping[str, str],
        counts: Mapping[str, str],
        pointers: Mapping[str, str],
    ) -> None:
        """Run the nest of a block.

        Along each axis the block begins at the index in `origins`, else at that of the task. It has
        `counts` iterations. `pointers` are the addresses of its own buffers.
        """
        f, context = self.f, self.contexts[nest]
        for name, pointer in pointers.items():
            f.put(f"store ptr {pointer}, ptr {context.slots[name]}")
        words = {first_index(a): i for a, i in {**self.origins, **origins}.items()}
        words |= {iterations(a): n for a, n in counts.items()}
        for name, word in words.items():
            if name in context.slots:
                f.put(f"store i64 {word}, ptr {context.slots[name]}")
        f.put(f"call void @{nest.kernel.name}.slice0(ptr {context.base}, i64 0, i64 1)")

    def _report_status(self) -> None:
        """Report an index out of range that a nest found."""
        f, kernel = self.f, self.blocked.kernel
        if not any(isinstance(s, Gather) for s in kernel.body):
            return
        found = "0"
        for context in self.contexts.values():
            found = f.let(f"or i64 {found}, {f.let(f'load i64, ptr {context.status}')}")
        with f.if_then(f.let(f"icmp ne i64 {found}, 0")):
            slot = context_words(kernel) - 1
            f.put(f"store i64 1, ptr {f.let(f'getelementptr i64, ptr %context, i64 {slot}')}")

    # -- operands --------------------------------------------------------------------------------

    def _extent(self, axis: str) -> str:
        """Return the extent of an axis as an operand."""
        return size_operand(self.f, self.blocked.kernel.extent(axis), self.sizes)

    def _tile_count(self, extent: str, block: int) -> str:
        return self.f.let(f"sdiv i64 {self.f.let(f'add i64 {extent}, {block - 1}')}, {block}")

    def _remaining(self, extent: str, first: str, most: int) -> str:
        """Return how many iterations a block that begins at `first` has."""
        return minimum(self.f, str(most), self.f.let(f"sub i64 {extent}, {first}"))

    def _at(self, offset: int) -> str:
        """Return the address of a part of this thread's workspace."""
        return self.f.let(f"getelementptr i8, ptr {self.workspace}, i64 {offset}")

    def _tile(self, n: int) -> str:
        return self._at(self.blocked.offsets.tiles[n])
