"""Kernel -> BlockedContraction: blocks of products, their factors packed as they are computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tofuse.analysis.live_statements import live_statements
from tofuse.backends.cpu.llvm.matmul.masked_vectors import LANES
from tofuse.backends.cpu.llvm.matmul.pack import (
    WIDTH,
    line_stride,
    micropanel_elements,
)
from tofuse.backends.cpu.schedule.block_nests import BuildNest, block_nest
from tofuse.backends.cpu.schedule.product_analysis import ProductAnalysis, analyze_products
from tofuse.ir.affine import make_affine
from tofuse.ir.blocked import (
    PACKED_BUFFER,
    BlockedContraction,
    BlockProduct,
    Factor,
    WorkspaceOffsets,
    tile_buffer,
)
from tofuse.ir.dims import Dim, size_hint
from tofuse.ir.kernel import Buffer, Compute, Kernel, Load, Stmt, Store
from tofuse.ir.nest import Nest
from tofuse.ir.rules import Rule
from tofuse.ir.schedule import BlockedSchedule
from tofuse.ir.types import DType
from tofuse.schedule.axis_strides import axes_by_stride
from tofuse.schedule.backward_slice import backward_slice
from tofuse.schedule.schedule_legality import Unschedulable


def build_blocked(
    kernel: Kernel, schedule: BlockedSchedule, build_nest: BuildNest
) -> BlockedContraction:
    """Return the blocks of a kernel; raise Unschedulable if a part of it has no single nest."""
    found = analyze_products(kernel)
    if found is None:
        raise Unschedulable(Rule.DIFFERENT_LOOPS())
    if schedule.rows == found.columns:
        found = found.transposed()
    builder = _Builder(found, schedule, build_nest)
    products = tuple(builder.product(n) for n in range(len(found.sums)))
    tile_stride = line_stride(schedule.tile_columns)
    epilogue = builder.epilogue(tile_stride)
    scratch_bytes = [n.block_bytes for p in products for n in (p.left.pack, p.right.pack)]
    offsets, block_bytes = _workspace(
        schedule, products, tile_stride, [*scratch_bytes, epilogue.block_bytes]
    )
    return BlockedContraction(
        kernel, schedule, found.outer, products, epilogue, tile_stride, offsets, block_bytes
    )


def _workspace(
    schedule: BlockedSchedule,
    products: Sequence[BlockProduct],
    tile_stride: int,
    scratch_bytes: Sequence[Dim],
) -> tuple[WorkspaceOffsets, int]:
    """Return the parts of a thread's workspace, and its size in bytes."""
    if not all(isinstance(n, int) for n in scratch_bytes):
        raise Unschedulable(Rule.DIFFERENT_LOOPS())
    rows = -(-schedule.tile_rows // schedule.micro_rows) * schedule.micro_rows
    micropanel = max(
        micropanel_elements(schedule.micro_rows, not p.left.line_major, schedule.depth)
        for p in products
    )
    elements = [
        micropanel * schedule.left_micropanels,
        schedule.depth * schedule.tile_columns,
        WIDTH * line_stride(schedule.depth),
        *(rows * tile_stride for _ in products),
    ]
    starts = [4 * sum(elements[:k]) for k in range(len(elements) + 1)]
    left, right, untransposed, *tiles, scratch = starts
    offsets = WorkspaceOffsets(left, right, untransposed, tuple(tiles), scratch)
    return offsets, scratch + -(-max(map(size_hint, scratch_bytes)) // 64) * 64


class _Builder:
    """Builds the nests of blocks."""

    def __init__(
        self,
        found: ProductAnalysis,
        schedule: BlockedSchedule,
        build_nest: BuildNest,
    ) -> None:
        self.found, self.kernel, self.schedule = found, found.kernel, schedule
        self.build_nest = build_nest

    def product(self, n: int) -> BlockProduct:
        """Return the blocks of a product, with nests that pack both factors."""
        total, (left, right) = self.found.sums[n], self.found.factors[n]
        of_right = [(s.index, 1) for s in self._slice(right) if isinstance(s, Load)]
        depth = tuple(a for a in axes_by_stride(self.kernel, of_right) if a in total.over)
        most = self.schedule.depth * self.schedule.microkernel.step_elements
        blocked, step = _depth_block([size_hint(self.kernel.extent(a)) for a in depth], most)
        block = depth[blocked:], step
        a = self._factor(f"left{n}", left, self.schedule.rows, LANES, *block)
        b = self._factor(f"right{n}", right, self.schedule.columns, WIDTH, *block)
        return BlockProduct(total.name, depth, blocked, step, a, b)

    def _slice(self, value: str) -> list[Stmt]:
        """Return the statements that compute a value, in order."""
        needed = backward_slice([self.kernel.definitions[value]], self.kernel.definitions)
        return [s for s in self.kernel.body if s in needed]

    def _factor(
        self, name: str, value: str, line: str, width: int, depth: Sequence[str], step: int
    ) -> Factor:
        """Return the nest that packs blocks of a factor whose lines run along the axis `line`.

        A block has `step` iterations of the first axis of `depth`, and all of the others. If it is
        not line-major, it has `width` lines.
        """
        microkernel, stmts = self.schedule.microkernel, self._slice(value)
        # a step of several elements is contiguous in a line
        several = microkernel.step_elements > 1
        line_major = several or not self.found.is_contiguous_along(value, line)
        stride = line_stride(self.schedule.depth) * microkernel.step_elements
        line_step, depth_step = (stride, 1) if line_major else (1, width)
        terms: list[tuple[str, Dim]] = [(line, line_step)]
        for axis in reversed(depth):
            terms.append((axis, depth_step))
            depth_step *= size_hint(self.kernel.extent(axis))
        match self.kernel.definitions[value]:
            case Compute(op="round_bf16", args=(str(unrounded),)) if several:
                value = unrounded  # the store rounds
        store = Store(PACKED_BUFFER, make_affine(terms), value, microkernel.dtype)
        packed = Buffer(PACKED_BUFFER, microkernel.dtype, "out")
        hints = {line: WIDTH, depth[0]: step}
        stmts = live_statements([*stmts, store])
        return Factor(self._block(name, stmts, hints, depth[1:], [packed]), line_major)

    def epilogue(self, tile_stride: int) -> Nest:
        """Return the nest that computes the stored values from the tiles of the sums."""
        rows, columns = self.schedule.rows, self.schedule.columns
        sums = {s: n for n, s in enumerate(self.found.sums)}
        tile = make_affine([(rows, tile_stride), (columns, 1)])
        body: list[Stmt] = [
            Load(s.name, tile_buffer(sums[s]), tile, DType.F32) if s in sums else s
            for s in self.kernel.body
        ]
        tiles = [Buffer(tile_buffer(n), DType.F32, "in") for n in range(len(sums))]
        hints = {rows: self.schedule.tile_rows, columns: self.schedule.tile_columns}
        return self._block("epilogue", live_statements(body), hints, (), tiles)

    def _block(
        self,
        name: str,
        stmts: Sequence[Stmt],
        counted: Mapping[str, int],
        whole: Sequence[str],
        local: Sequence[Buffer],
    ) -> Nest:
        return block_nest(self.kernel, name, stmts, counted, whole, local, self.build_nest)


def _depth_block(extents: Sequence[int], elements: int) -> tuple[int, int]:
    """Return which axis of the depth is blocked, and how many of its iterations a block has.

    A block has at most so many elements along the depth.
    """
    blocked, inner = len(extents) - 1, 1
    while blocked > 0 and inner * extents[blocked] <= elements:
        inner *= extents[blocked]
        blocked -= 1
    most = max(1, elements // inner)
    blocks = -(-extents[blocked] // most)
    return blocked, -(-extents[blocked] // blocks)
