"""LLVM IR of a product chain: blocks of rows, the stages of each, right factors packed once.

The entry, its context and its functions are those of a nest of one parallel phase; see `emit.py`.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tofuse.backends.cpu.llvm.emit import NONTEMPORAL_METADATA, EmitOptions, emit_slices
from tofuse.backends.cpu.llvm.entry import entry_function, worker_function
from tofuse.backends.cpu.llvm.matmul.gemm_context import partial_sums
from tofuse.backends.cpu.llvm.matmul.masked_vectors import LANES, element_pointer
from tofuse.backends.cpu.llvm.matmul.microkernel import microkernel_function
from tofuse.backends.cpu.llvm.matmul.pack import (
    WIDTH,
    line_stride,
    right_micropanel_elements,
    tile_stride,
    transposing_pack_function,
)
from tofuse.backends.cpu.llvm.matmul.task_emitter import TaskEmitter
from tofuse.backends.cpu.llvm.matmul.tile_microkernel import (
    configure_tiles,
    tile_configuration,
    tile_microkernel_function,
)
from tofuse.cost.thresholds import PARTIAL_PRODUCT_SUM_STEPS
from tofuse.ir.blocked import PACKED_BUFFER, tile_buffer
from tofuse.ir.dims import size_hint
from tofuse.ir.product_chain import (
    SCRATCH,
    UNTRANSPOSED,
    ChainProduct,
    ChainStage,
    ProductChain,
    left_buffer,
    right_panel,
)
from tofuse.ir.schedule import Microkernel


def emit_chain(chain: ProductChain, options: EmitOptions) -> str:
    """Return the text of a module for one kernel."""
    kernel = chain.kernel
    declarations: dict[str, str] = {}
    texts: list[str] = []
    for p in chain.products:
        texts += _microkernel_texts(chain, p, options, declarations)
    for nest in chain.nests:
        # the microkernels flush subnormal factors to zero, so that nests of factors may store zeros
        outputs = {b.name for b in nest.kernel.buffers if b.role != "in"}
        has_factors = outputs.isdisjoint(b.name for b in kernel.buffers)
        texts += emit_slices(nest, replace(options, native_bf16=has_factors), declarations)
    if any(p.right.line_major for p in chain.products):
        name = f"@{kernel.name}.transpose"
        texts.append(transposing_pack_function(name, declarations, padded=True))
    if _uses_tiles(chain):
        texts.append(tile_configuration(f"@{kernel.name}.tiles"))
    task = _ChainEmitter(chain)
    texts.append(task.text())
    declarations |= task.f.declarations
    texts.append(worker_function(kernel, 0, declarations))
    texts.append(entry_function(kernel, [(True, False)], declarations))
    return "\n".join([*declarations.values(), "", *texts, NONTEMPORAL_METADATA])


def _microkernel(chain: ProductChain, p: ChainProduct) -> Microkernel:
    microkernel, *_ = chain.schedule.microkernels[p.number]
    return microkernel


def _uses_tiles(chain: ProductChain) -> bool:
    return any(_microkernel(chain, p) is Microkernel.BF16_TILES for p in chain.products)


def _column_counts(chain: ProductChain, p: ChainProduct) -> tuple[int, ...]:
    """Return the columns of a product's microkernel, then of the one for columns that are half."""
    microkernel, _, columns = chain.schedule.microkernels[p.number]
    has_half = columns == 2 * LANES and microkernel is not Microkernel.BF16_TILES
    return (columns, LANES) if has_half else (columns,)


def _name(chain: ProductChain, p: ChainProduct, columns: int) -> str:
    return f"@{chain.kernel.name}.micro{p.number}.{columns}"


def _microkernel_texts(
    chain: ProductChain, p: ChainProduct, options: EmitOptions, declarations: dict[str, str]
) -> list[str]:
    """Return the functions that multiply the factors of a product."""
    microkernel, rows, _ = chain.schedule.microkernels[p.number]
    texts: list[str] = []
    for columns in _column_counts(chain, p):
        name = _name(chain, p, columns)
        if microkernel is Microkernel.BF16_TILES:
            texts.append(tile_microkernel_function(name, p.steps, declarations))
            continue
        text = microkernel_function(
            name,
            rows,
            False,
            declarations,
            fused=options.contract,
            dtype=microkernel.dtype,
            columns=columns,
            is_whole=True,
            panel_depth=p.steps,
        )
        texts.append(text)
    return texts


class _ChainEmitter(TaskEmitter):
    """Emits the function of one thread's share of the blocks of rows."""

    def __init__(self, chain: ProductChain) -> None:
        super().__init__(chain.kernel, chain.nests, chain.block_bytes, chain.offsets[SCRATCH])
        self.chain = chain
        for stage in chain.stages:
            for nest in stage.nests:
                for name in chain.offsets.keys() & self.contexts[nest].slots.keys():
                    slot = self.contexts[nest].slots[name]
                    self.f.put(f"store ptr {self._part(name)}, ptr {slot}")

    def text(self) -> str:
        f, chain, schedule = self.f, self.chain, self.chain.schedule
        if _uses_tiles(chain):
            configure_tiles(f, f"@{chain.kernel.name}.tiles")
        packed = {p: f.alloca("i64") for p in chain.products}
        for slot in packed.values():
            f.put(f"store i64 -1, ptr {slot}")
        rows = self.extent(schedule.rows)
        outer = [self.extent(a) for a in chain.outer]
        down = self.block_count(rows, schedule.tile_rows)
        total = down
        for extent in outer:
            total = f.let(f"mul i64 {total}, {extent}")
        with f.loop(*self.share_of(total), "1") as task:
            rest, positions = task, []
            for extent in (down, *reversed(outer)):
                positions.append(f.let(f"srem i64 {rest}, {extent}"))
                rest = f.let(f"sdiv i64 {rest}, {extent}")
            self.origins |= zip(reversed(chain.outer), positions[1:], strict=True)
            row = f.let(f"mul i64 {positions[0]}, {schedule.tile_rows}")
            self.origins[schedule.rows] = row
            for p, slot in packed.items():
                self._pack_if_changed(p, slot)
            height = self.remaining(rows, row, schedule.tile_rows)
            for stage in chain.stages:
                self._stage(stage, height)
        if _uses_tiles(chain):
            f.call("@llvm.x86.tilerelease", "void")
        return self.finish()

    def _stage(self, stage: ChainStage, height: str) -> None:
        for nest in stage.nests:
            self.call(nest, {}, {self.chain.schedule.rows: height}, {})
        for p in stage.products:
            self._multiply(p, height)

    def _pack_if_changed(self, p: ChainProduct, slot: str) -> None:
        """Pack a right factor, unless the block before had the same one.

        `slot` holds the position of the one that is packed, among all.
        """
        f, position = self.f, "0"
        for axis in p.around:
            scaled = f.let(f"mul i64 {position}, {self.extent(axis)}")
            position = f.let(f"add i64 {scaled}, {self.origins[axis]}")
        last = f.let(f"load i64, ptr {slot}")
        with f.if_then(f.let(f"icmp ne i64 {last}, {position}")):
            f.put(f"store i64 {position}, ptr {slot}")
            self._pack(p)

    def _pack(self, p: ChainProduct) -> None:
        f, columns = self.f, self.extent(p.columns)
        panel, untransposed = self._part(right_panel(p.number)), self._part(UNTRANSPOSED)
        stride = line_stride(p.steps)
        with f.loop("0", columns, str(WIDTH)) as j:
            width = self.remaining(columns, j, WIDTH)
            number = f.let(f"sdiv i64 {j}, {WIDTH}")
            place = f.let(f"mul i64 {number}, {right_micropanel_elements(p.steps)}")
            micropanel = element_pointer(f, panel, place)
            to = untransposed if p.right.line_major else micropanel
            self.call(p.right.pack, {p.columns: j}, {p.columns: width}, {PACKED_BUFFER: to})
            if p.right.line_major:
                self._pad(p, untransposed, width)
                block = f"ptr {untransposed}, i64 {stride}, i64 {width}, i64 {p.steps}"
                helper = f"@{self.kernel.name}.transpose"
                f.put(f"call void {helper}({block}, ptr {micropanel})")

    def _pad(self, p: ChainProduct, to: str, lines: str) -> None:
        """Store zeros after the last element of each line of a factor."""
        microkernel = _microkernel(self.chain, p)
        elements = math.prod(size_hint(self.kernel.extent(a)) for a in p.depth)
        end = p.steps * microkernel.step_elements
        if end != elements:
            stride = line_stride(p.steps) * microkernel.step_elements
            self.pad_lines(to, lines, stride, (str(elements), str(end)))

    def _multiply(self, p: ChainProduct, height: str) -> None:
        """Multiply a block of rows with all columns of a right factor."""
        f, chain = self.f, self.chain
        microkernel, rows, width = chain.schedule.microkernels[p.number]
        left, right = (self._part(name(p.number)) for name in (left_buffer, right_panel))
        tile = self._part(tile_buffer(p.number))
        stride = tile_stride(size_hint(self.kernel.extent(p.columns)))
        self._pad(p, left, height)
        columns = self.extent(p.columns)
        # parts of bfloat16 have twice as many steps: shorter ones are not more exact
        part_steps = PARTIAL_PRODUCT_SUM_STEPS * microkernel.step_elements
        whole, *half = (_name(chain, p, c) for c in _column_counts(chain, p))
        with (
            partial_sums(f, str(p.steps), "0", part_steps) as (k, count, flags),
            f.loop("0", columns, str(width)) as j,
        ):
            chosen = whole
            if half:
                rest = f.let(f"sub i64 {columns}, {j}")
                is_few = f.let(f"icmp sle i64 {rest}, {LANES}")
                chosen = f.let(f"select i1 {is_few}, ptr {half[0]}, ptr {whole}")
            inside = f.let(f"and i64 {j}, {WIDTH - 1}")
            number = f.let(f"sdiv i64 {j}, {WIDTH}")
            start = f.let(f"mul i64 {number}, {right_micropanel_elements(p.steps)}")
            b = element_pointer(f, right, f.let(f"add i64 {start}, {inside}"))
            b = element_pointer(f, b, f.let(f"mul i64 {k}, {WIDTH}"))
            with f.loop("0", height, str(rows)) as i:
                place = f.let(f"add i64 {f.let(f'mul i64 {i}, {line_stride(p.steps)}')}, {k}")
                a = element_pointer(f, left, place)
                place = f.let(f"add i64 {f.let(f'mul i64 {i}, {stride}')}, {j}")
                c = element_pointer(f, tile, place)
                operands = f"ptr {a}, ptr {b}, i64 {count}"
                sums = f"ptr {c}, i64 {stride}, i64 {rows}, i64 {width}"
                no_bias = f"i64 {flags}, ptr {c}, i64 0"
                f.put(f"call void {chosen}({operands}, {sums}, {no_bias})")

    def _part(self, name: str) -> str:
        """Return the address of a part of this thread's workspace."""
        return self.at(self.chain.offsets[name])
