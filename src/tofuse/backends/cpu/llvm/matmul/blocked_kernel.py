"""LLVM IR of a blocked contraction: tasks, blocks of depth, packed factors, tiles, epilogue.

The entry, its context and its functions are those of a nest of one parallel phase; see `emit.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from tofuse.backends.cpu.llvm.emit import MODULE_METADATA, EmitOptions, emit_slices
from tofuse.backends.cpu.llvm.entry import (
    context_word,
    context_words,
    entry_function,
    worker_function,
)
from tofuse.backends.cpu.llvm.ir_text import ALIGNED_STACK, FunctionBuilder
from tofuse.backends.cpu.llvm.matmul.gemm_context import minimum
from tofuse.backends.cpu.llvm.matmul.microkernel import ACCUMULATE, microkernel_text
from tofuse.backends.cpu.llvm.matmul.pack import (
    WIDTH,
    line_stride,
    micropanel_elements,
    pack_transposed,
)
from tofuse.backends.cpu.llvm.matmul.tile_microkernel import (
    configure_tiles,
    tile_configuration,
    tile_microkernel_text,
)
from tofuse.cost.thresholds import BLOCK_MICROPANELS, PANEL_DEPTH
from tofuse.ir.blocked import PACKED, BlockedContraction, BlockNest, BlockProduct
from tofuse.ir.dims import Dim
from tofuse.ir.kernel import Gather
from tofuse.ir.schedule import Microkernel
from tofuse.ir.types import DType


def emit_blocked(blocked: BlockedContraction, options: EmitOptions) -> str:
    """Return the text of a module for one kernel."""
    name = blocked.kernel.name
    declarations: dict[str, str] = {}
    texts: list[str] = []
    # the microkernel takes subnormal factors for zeros, so that the packs may store zeros
    packing = replace(options, native_bf16=blocked.schedule.microkernel.dtype is DType.BF16)
    for p in blocked.products:
        for factor in (p.left, p.right):
            texts += _slices(factor.pack, packing, declarations)
    texts += _slices(blocked.epilogue, options, declarations)
    rows = blocked.schedule.micro_rows
    microkernel = blocked.schedule.microkernel
    layouts = {_microkernel_name(p): p.left.line_major for p in blocked.products}
    helpers = {
        name: tile_microkernel_text()
        if microkernel is Microkernel.BF16_TILES
        else microkernel_text(rows, not line_major, fused=options.contract, dtype=microkernel.dtype)
        for name, line_major in layouts.items()
    }
    if any(p.right.line_major for p in blocked.products):
        helpers["transpose"] = pack_transposed()
    for helper, text in helpers.items():
        found, function = _split_declarations(text)
        declarations |= found
        old = "@pack(" if helper == "transpose" else "@micro("
        texts.append(
            function.replace(f"define void {old}", f"define internal void @{name}.{helper}(")
        )
    if microkernel is Microkernel.BF16_TILES:
        texts.append(tile_configuration(f"@{name}.tiles"))
    task = _TaskEmitter(blocked)
    texts.append(task.text())
    declarations |= task.f.declarations
    texts.append(worker_function(blocked.kernel, 0, declarations))
    texts.append(entry_function(blocked.kernel, [(True, False)], declarations))
    return "\n".join([*declarations.values(), "", *texts, MODULE_METADATA])


def _slices(block: BlockNest, options: EmitOptions, declarations: dict[str, str]) -> list[str]:
    """Return the functions of a nest; add what they need to `declarations`."""
    found, texts = emit_slices(block.nest, options)
    declarations |= found
    return texts


def _microkernel_name(p: BlockProduct) -> str:
    return f"micro.{'lines' if p.left.line_major else 'depth'}"


def _split_declarations(text: str) -> tuple[dict[str, str], str]:
    """Return the declarations of a module by symbol, and the rest of its text."""
    found: dict[str, str] = {}
    rest: list[str] = []
    for line in text.splitlines():
        if line.startswith("declare "):
            found[line.split("(")[0].split()[-1]] = line
        else:
            rest.append(line)
    return found, "\n".join(rest)


@dataclass(frozen=True)
class _PaddedDepth:
    """The steps of the microkernel in a block, and the elements that must be zeros: from, to."""

    steps: str
    padding: tuple[str, str] | None


@dataclass(eq=False)
class _LocalContext:
    """The context of the nest of a block, on the stack; `slots` are the addresses of its words."""

    block: BlockNest
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
        self.sizes = {
            s: context_word(f, k) for k, s in enumerate(kernel.symbols, len(kernel.buffers))
        }
        workspace = context_word(f, len(kernel.buffers) + len(kernel.symbols), "ptr")
        start = f.let(f"mul i64 %share, {self.blocked.block_bytes}")
        self.workspace = f.let(f"getelementptr i8, ptr {workspace}, i64 {start}")
        self.contexts = {id(b): self._local_context(b) for b in self.blocked.nests}
        rows, columns = (self._size(kernel.extent(a)) for a in (schedule.rows, schedule.columns))
        uses_tiles = schedule.microkernel is Microkernel.BF16_TILES
        if uses_tiles:
            configure_tiles(f, f"@{kernel.name}.tiles")
        with self._tasks(rows, columns) as (row, column):
            self.origins |= {schedule.rows: row, schedule.columns: column}
            count = self._remaining(rows, row, schedule.row_block)
            width = self._remaining(columns, column, schedule.column_block)
            for n, product in enumerate(self.blocked.products):
                self._product(n, product, count, width)
            epilogue = self.blocked.epilogue
            tiles = {f"tile{n}": self._tile(n) for n in range(len(self.blocked.products))}
            counts = {schedule.rows: count, schedule.columns: width}
            self._call(epilogue, {schedule.rows: row, schedule.columns: column}, counts, tiles)
        if uses_tiles:
            f.call("@llvm.x86.tilerelease", "void")
        self._report_status()
        head = f"define void @{kernel.name}.slice0(ptr %context, i64 %share, i64 %shares)"
        return f.text(f"{head} noinline nounwind {ALIGNED_STACK}")

    @contextmanager
    def _tasks(self, rows: str, columns: str) -> Iterator[tuple[str, str]]:
        """Emit the loop over this thread's tasks; yield the first row and column of the tile."""
        f, kernel, schedule = self.f, self.blocked.kernel, self.blocked.schedule
        outer = [self._size(kernel.extent(a)) for a in self.blocked.outer]
        down = self._tile_count(rows, schedule.row_block)
        across = self._tile_count(columns, schedule.column_block)
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
            row = f.let(f"mul i64 {positions[0]}, {schedule.row_block}")
            yield row, f.let(f"mul i64 {positions[1]}, {schedule.column_block}")

    def _product(self, n: int, p: BlockProduct, rows: str, columns: str) -> None:
        """Add the products of all blocks of the depth to a tile."""
        f, kernel, schedule = self.f, self.blocked.kernel, self.blocked.schedule
        block_rows = schedule.micro_rows * BLOCK_MICROPANELS
        inner = 1
        for a in p.depth[p.blocked + 1 :]:
            inner *= _static(kernel.extent(a))
        of_task = dict(self.origins)
        with ExitStack() as loops:
            steps: dict[str, str] = {}
            for k, a in enumerate(p.depth[: p.blocked + 1]):
                step = p.step if k == p.blocked else 1
                loop = f.loop("0", str(_static(kernel.extent(a))), str(step))
                steps[a] = loops.enter_context(loop)
            self.origins |= steps
            axis = p.depth[p.blocked]
            count = self._remaining(str(_static(kernel.extent(axis))), steps[axis], p.step)
            depth = f.let(f"mul i64 {count}, {inner}")
            padded = self._padded_depth(p, depth, inner)
            self._pack_right(p, columns, (axis, count), padded)
            index = "0"
            for first in steps.values():
                index = f.let(f"or i64 {index}, {first}")
            later = f.let(f"icmp ne i64 {index}, 0")
            flags = f.let(f"select i1 {later}, i64 {ACCUMULATE}, i64 0")
            with f.loop("0", rows, str(block_rows)) as m:
                lines = self._remaining(rows, m, block_rows)
                self._pack_left(p, m, lines, (axis, count), padded)
                self._multiply(n, p, m, lines, columns, padded.steps, flags)
        self.origins = of_task

    def _pack_right(
        self, p: BlockProduct, columns: str, count: tuple[str, str], depth: _PaddedDepth
    ) -> None:
        """Pack a panel of the right factor, a micropanel at a time."""
        f, schedule, offsets = self.f, self.blocked.schedule, self.blocked.offsets
        panel, stage = self._at(offsets.right), self._at(offsets.stage)
        with f.loop("0", columns, str(WIDTH)) as j:
            width = self._remaining(columns, j, WIDTH)
            place = f.let(f"mul i64 {j}, {PANEL_DEPTH}")
            micropanel = f.let(f"getelementptr float, ptr {panel}, i64 {place}")
            column = f.let(f"add i64 {self.origins[schedule.columns]}, {j}")
            to = stage if p.right.line_major else micropanel
            counts = {schedule.columns: width, count[0]: count[1]}
            self._call(p.right.pack, {schedule.columns: column}, counts, {PACKED: to})
            if p.right.line_major:
                self._pad_lines(stage, width, depth)
                stride = line_stride(PANEL_DEPTH)
                block = f"ptr {stage}, i64 {stride}, i64 {width}, i64 {depth.steps}"
                helper = f"@{self.blocked.kernel.name}.transpose"
                f.put(f"call void {helper}({block}, ptr {micropanel})")

    def _pack_left(
        self, p: BlockProduct, m: str, lines: str, count: tuple[str, str], depth: _PaddedDepth
    ) -> None:
        """Pack a block of the left factor: all lines at once, or a micropanel at a time."""
        f, schedule = self.f, self.blocked.schedule
        packed = self._at(self.blocked.offsets.left)
        row = f.let(f"add i64 {self.origins[schedule.rows]}, {m}")
        if p.left.line_major:
            counts = {schedule.rows: lines, count[0]: count[1]}
            self._call(p.left.pack, {schedule.rows: row}, counts, {PACKED: packed})
            self._pad_lines(packed, lines, depth)
            return
        size = micropanel_elements(schedule.micro_rows, True)
        with f.loop("0", lines, str(schedule.micro_rows)) as i:
            height = self._remaining(lines, i, schedule.micro_rows)
            number = f.let(f"sdiv i64 {i}, {schedule.micro_rows}")
            place = f.let(f"mul i64 {number}, {size}")
            micropanel = f.let(f"getelementptr float, ptr {packed}, i64 {place}")
            counts = {schedule.rows: height, count[0]: count[1]}
            first = f.let(f"add i64 {row}, {i}")
            self._call(p.left.pack, {schedule.rows: first}, counts, {PACKED: micropanel})

    def _multiply(
        self, n: int, p: BlockProduct, m: str, lines: str, columns: str, depth: str, flags: str
    ) -> None:
        """Multiply every micropanel of a left block with every one of a right panel."""
        f, blocked, rows = self.f, self.blocked, self.blocked.schedule.micro_rows
        stride = blocked.tile_stride
        left, right = self._at(blocked.offsets.left), self._at(blocked.offsets.right)
        size = micropanel_elements(rows, not p.left.line_major)
        helper = f"@{blocked.kernel.name}.{_microkernel_name(p)}"
        with f.loop("0", columns, str(WIDTH)) as j:
            place = f.let(f"mul i64 {j}, {PANEL_DEPTH}")
            b = f.let(f"getelementptr float, ptr {right}, i64 {place}")
            with f.loop("0", lines, str(rows)) as i:
                number = f.let(f"sdiv i64 {i}, {rows}")
                place = f.let(f"mul i64 {number}, {size}")
                a = f.let(f"getelementptr float, ptr {left}, i64 {place}")
                row = f.let(f"mul i64 {f.let(f'add i64 {m}, {i}')}, {stride}")
                place = f.let(f"add i64 {row}, {j}")
                c = f.let(f"getelementptr float, ptr {self._tile(n)}, i64 {place}")
                tile = f"ptr {c}, i64 {stride}, i64 {rows}, i64 {WIDTH}"
                bias = f"i64 {flags}, ptr {c}, i64 0"
                f.put(f"call void {helper}(ptr {a}, ptr {b}, i64 {depth}, {tile}, {bias})")

    def _padded_depth(self, p: BlockProduct, elements: str, inner: int) -> _PaddedDepth:
        """Return the steps of the microkernel for some elements along the depth."""
        f, kernel, microkernel = self.f, self.blocked.kernel, self.blocked.schedule.microkernel
        per_step, multiple = microkernel.step_elements, microkernel.depth_multiple
        if multiple == 1:
            return _PaddedDepth(elements, None)
        extent = _static(kernel.extent(p.depth[p.blocked]))
        is_whole = all(n * inner % multiple == 0 for n in (p.step, extent % p.step))
        rounded = f.let(f"add i64 {elements}, {multiple - 1}")
        end = f.let(f"mul i64 {f.let(f'sdiv i64 {rounded}, {multiple}')}, {multiple}")
        steps = f.let(f"sdiv i64 {end}, {per_step}")
        return _PaddedDepth(steps, None if is_whole else (elements, end))

    def _pad_lines(self, to: str, lines: str, depth: _PaddedDepth) -> None:
        """Store zeros after the last element of each line."""
        f = self.f
        if depth.padding is None:
            return
        stride = line_stride(PANEL_DEPTH) * self.blocked.schedule.microkernel.step_elements
        with f.loop("0", lines, "1") as line, f.loop(*depth.padding, "1") as k:
            place = f.let(f"add i64 {f.let(f'mul i64 {line}, {stride}')}, {k}")
            f.put(f"store i16 0, ptr {f.let(f'getelementptr i16, ptr {to}, i64 {place}')}")

    # -- nests of blocks -------------------------------------------------------------------------

    def _local_context(self, block: BlockNest) -> _LocalContext:
        """Make the context of a nest, with the words that are the same in every call."""
        f, kernel = self.f, block.nest.kernel
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
        return _LocalContext(block, base, slots, status)

    def _call(
        self,
        block: BlockNest,
        origins: Mapping[str, str],
        counts: Mapping[str, str],
        pointers: Mapping[str, str],
    ) -> None:
        """Run the nest of a block. Its first indices are `origins`, else those of the task."""
        f, context = self.f, self.contexts[id(block)]
        for name, pointer in pointers.items():
            f.put(f"store ptr {pointer}, ptr {context.slots[name]}")
        for axis, name in block.origins:
            first = {**self.origins, **origins}.get(axis, "0")
            f.put(f"store i64 {first}, ptr {context.slots[name]}")
        for axis, name in block.counts:
            f.put(f"store i64 {counts[axis]}, ptr {context.slots[name]}")
        f.put(f"call void @{block.nest.kernel.name}.slice0(ptr {context.base}, i64 0, i64 1)")

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

    def _size(self, dim: Dim) -> str:
        """Return a size as an operand."""
        if isinstance(dim, int):
            return str(dim)
        total = "0"
        for monomial, c in dim.terms:
            term = str(c)
            for s in monomial:
                term = self.f.let(f"mul i64 {term}, {self.sizes[s]}")
            total = self.f.let(f"add i64 {total}, {term}")
        return total

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


def _static(dim: Dim) -> int:
    assert isinstance(dim, int)
    return dim
