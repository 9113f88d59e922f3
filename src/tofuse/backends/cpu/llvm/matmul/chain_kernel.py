"""LLVM IR of a product chain: blocks of rows, the stages of each, right factors packed once.

The entry, its context and its functions are those of a nest of one parallel phase; see `emit.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tofuse.backends.cpu.llvm.emit import EmitOptions, emit_slices
from tofuse.backends.cpu.llvm.ir_text import float_literal
from tofuse.backends.cpu.llvm.matmul.gemm_context import partial_sums
from tofuse.backends.cpu.llvm.matmul.mask_range import emit_range
from tofuse.backends.cpu.llvm.matmul.masked_vectors import element_pointer
from tofuse.backends.cpu.llvm.matmul.pack import (
    WIDTH,
    line_stride,
    right_micropanel_elements,
    tile_stride,
    transposing_pack_function,
)
from tofuse.backends.cpu.llvm.matmul.product_microkernel import ProductMicrokernel
from tofuse.backends.cpu.llvm.matmul.task_emitter import TaskEmitter
from tofuse.backends.cpu.llvm.matmul.tile_microkernel import (
    configure_tiles,
    tile_configuration,
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
    row_buffer,
)
from tofuse.ir.schedule import Microkernel


def emit_chain(chain: ProductChain, options: EmitOptions) -> str:
    """Return the text of a module for one kernel."""
    kernel = chain.kernel
    declarations: dict[str, str] = {}
    texts: list[str] = []
    for p in chain.products:
        texts += _functions(chain, p).texts(options, declarations)
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
    return task.module([*texts, task.text()], declarations)


def _microkernel(chain: ProductChain, p: ChainProduct) -> Microkernel:
    microkernel, *_ = chain.schedule.microkernels[p.number]
    return microkernel


def _uses_tiles(chain: ProductChain) -> bool:
    return any(_microkernel(chain, p) is Microkernel.BF16_TILES for p in chain.products)


def _functions(chain: ProductChain, p: ChainProduct) -> ProductMicrokernel:
    """Return the microkernel of a product, whose left factor is in memory line by line."""
    prefix = f"@{chain.kernel.name}.micro{p.number}"
    microkernel, rows, columns = chain.schedule.microkernels[p.number]
    return ProductMicrokernel(prefix, microkernel, rows, columns, True, p.steps)


class _ChainEmitter(TaskEmitter):
    """Emits the function of one thread's share of the blocks of rows."""

    def __init__(self, chain: ProductChain) -> None:
        super().__init__(chain.kernel, chain.nests, chain.block_bytes, chain.offsets[SCRATCH])
        self.chain = chain
        self.first, self.end = "0", "0"  # of the masked axis
        for stage in chain.stages:
            for nest in stage.nests:
                for name, slot in self.contexts[nest].slots.items():
                    if name in chain.offsets:
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
            self._block(height)
        if _uses_tiles(chain):
            f.call("@llvm.x86.tilerelease", "void")
        return self.finish()

    def _block(self, height: str) -> None:
        """Run the stages of a block of rows, for the iterations that masks leave."""
        f, chain, axis = self.f, self.chain, self.chain.masked_axis
        if axis is None:
            self._stages(height, chain.stages)
            return
        first, end = f.alloca("i64"), f.alloca("i64")
        emit_range(self, chain.masks, chain.schedule.rows, height, first, end)
        self._set_range(axis, first, end)
        required = {name: number for m in chain.masks for name, number in m.required_maxima}
        if not required:
            self._stages(height, chain.stages)
            return
        before, after = self._stages_around(required)
        self._stages(height, before)
        count = f.let(f"sub i64 {self.end}, {self.first}")
        is_part = f.let(f"icmp ne i64 {count}, {self.extent(axis)}")
        is_small = self._is_any_below(required, height)
        with f.if_then(f.let(f"and i1 {is_small}, {is_part}")):
            f.put(f"store i64 0, ptr {first}")
            f.put(f"store i64 {self.extent(axis)}, ptr {end}")
            self._set_range(axis, first, end)
            self._stages(height, before)
        self._set_range(axis, first, end)
        self._stages(height, after)

    def _stages_around(
        self, required: Mapping[str, float]
    ) -> tuple[list[ChainStage], list[ChainStage]]:
        """Return the stages up to the nests that compute maxima, and the rest."""
        buffers = set(map(row_buffer, required))
        stages = list(self.chain.stages)
        last = max(
            k
            for k, stage in enumerate(stages)
            for b in (b for nest in stage.nests for b in nest.kernel.buffers)
            if b.name in buffers and b.role == "out"
        )
        at = stages[last]
        return (
            [*stages[:last], ChainStage(at.nests, ())],
            [ChainStage((), at.products), *stages[last + 1 :]],
        )

    def _set_range(self, axis: str, first: str, end: str) -> None:
        """Let the next stages run over the part of the masked axis that two addresses hold."""
        self.first, self.end = (self.f.let(f"load i64, ptr {x}") for x in (first, end))
        self.origins[axis] = self.first

    def _is_any_below(self, required: Mapping[str, float], height: str) -> str:
        """Return whether a number of a row is not greater than it must be, as an i1."""
        f, found = self.f, self.f.alloca("i1")
        f.put(f"store i1 false, ptr {found}")
        for name, number in required.items():
            numbers = self._part(row_buffer(name))
            with f.loop("0", height, "1") as row:
                x = f.let(f"load float, ptr {element_pointer(f, numbers, row)}")
                is_small = f.let(f"fcmp ule float {x}, {float_literal(number, 'float')}")
                old = f.let(f"load i1, ptr {found}")
                f.put(f"store i1 {f.let(f'or i1 {old}, {is_small}')}, ptr {found}")
        return f.let(f"load i1, ptr {found}")

    def _stages(self, height: str, stages: Sequence[ChainStage]) -> None:
        counts = {self.chain.schedule.rows: height}
        if (axis := self.chain.masked_axis) is not None:
            counts[axis] = self.f.let(f"sub i64 {self.end}, {self.first}")
        for stage in stages:
            for nest in stage.nests:
                self.call(nest, {}, counts, {})
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
        elements = math.prod(size_hint(self.kernel.extent(a)) for a in p.depth)
        stride, end = line_stride(p.steps), p.steps * _microkernel(self.chain, p).step_elements
        with f.loop("0", columns, str(WIDTH)) as j:
            width = self.remaining(columns, j, WIDTH)
            micropanel = self._micropanel(panel, p, j)
            to = untransposed if p.right.line_major else micropanel
            self.call(p.right.pack, {p.columns: j}, {p.columns: width}, {PACKED_BUFFER: to})
            if p.right.line_major:
                self._pad(p, untransposed, width, str(elements), str(end))
                block = f"ptr {untransposed}, i64 {stride}, i64 {width}, i64 {p.steps}"
                helper = f"@{self.kernel.name}.transpose"
                f.put(f"call void {helper}({block}, ptr {micropanel})")

    def _pad(self, p: ChainProduct, to: str, lines: str, elements: str, end: str) -> None:
        """Store zeros after the last element of each line of a factor, up to `end`."""
        if elements != end:
            stride = line_stride(p.steps) * _microkernel(self.chain, p).step_elements
            self.pad_lines(to, lines, stride, (elements, end))

    def _depth(self, p: ChainProduct) -> tuple[str, str, str]:
        """Return the first step of the depth, the elements of a row, and these with padding."""
        f, microkernel = self.f, _microkernel(self.chain, p)
        if self.chain.masked_axis not in p.depth:
            whole = math.prod(size_hint(self.kernel.extent(a)) for a in p.depth)
            return "0", str(whole), str(p.steps * microkernel.step_elements)
        multiple, elements = microkernel.depth_multiple, f.let(f"sub i64 {self.end}, {self.first}")
        first = f.let(f"sdiv i64 {self.first}, {microkernel.step_elements}")
        if multiple == 1:
            return first, elements, elements
        blocks = self.block_count(elements, multiple)
        return first, elements, f.let(f"mul i64 {blocks}, {multiple}")

    def _multiply(self, p: ChainProduct, height: str) -> None:
        """Multiply a block of rows with the columns of a right factor."""
        f, chain = self.f, self.chain
        microkernel, rows, width = chain.schedule.microkernels[p.number]
        left, right = (self._part(name(p.number)) for name in (left_buffer, right_panel))
        tile = self._part(tile_buffer(p.number))
        stride = tile_stride(size_hint(self.kernel.extent(p.columns)))
        first_step, elements, padded = self._depth(p)
        self._pad(p, left, height, elements, padded)
        steps = f.let(f"sdiv i64 {padded}, {microkernel.step_elements}")
        is_masked = p.columns == chain.masked_axis
        first, end = (self.first, self.end) if is_masked else ("0", self.extent(p.columns))
        # parts of bfloat16 have twice as many steps: shorter ones are not more exact
        part_steps = PARTIAL_PRODUCT_SUM_STEPS * microkernel.step_elements
        with (
            partial_sums(f, steps, "0", part_steps) as (k, count, flags),
            f.loop(first, end, str(width)) as j,
        ):
            step = f.let(f"add i64 {first_step}, {k}")
            b = element_pointer(f, self._micropanel(right, p, j), f.let(f"mul i64 {step}, {WIDTH}"))
            function = _functions(chain, p).function_for(f, f.let(f"sub i64 {end}, {j}"))
            column = f.let(f"sub i64 {j}, {first}")
            with f.loop("0", height, str(rows)) as i:
                place = f.let(f"add i64 {f.let(f'mul i64 {i}, {line_stride(p.steps)}')}, {k}")
                a = element_pointer(f, left, place)
                place = f.let(f"add i64 {f.let(f'mul i64 {i}, {stride}')}, {column}")
                c = element_pointer(f, tile, place)
                operands = f"ptr {a}, ptr {b}, i64 {count}"
                sums = f"ptr {c}, i64 {stride}, i64 {rows}, i64 {width}"
                no_bias = f"i64 {flags}, ptr {c}, i64 0"
                f.put(f"call void {function}({operands}, {sums}, {no_bias})")

    def _micropanel(self, right: str, p: ChainProduct, column: str) -> str:
        """Return the address of the first step of some columns of a right factor."""
        f = self.f
        inside = f.let(f"and i64 {column}, {WIDTH - 1}")
        number = f.let(f"sdiv i64 {column}, {WIDTH}")
        start = f.let(f"mul i64 {number}, {right_micropanel_elements(p.steps)}")
        return element_pointer(f, right, f.let(f"add i64 {start}, {inside}"))

    def _part(self, name: str) -> str:
        """Return the address of a part of this thread's workspace."""
        return self.at(self.chain.offsets[name])
