"""Kernel -> BlockedContraction: blocks of products, their factors packed as they are computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tofuse.analysis.live_statements import live_statements
from tofuse.backends.cpu.llvm.matmul.masked_vectors import LANES
from tofuse.backends.cpu.llvm.matmul.pack import (
    AMX_MICROPANEL_ROWS,
    WIDTH,
    line_stride,
    microkernel_size,
    micropanel_elements,
    micropanel_rows,
)
from tofuse.cost.thresholds import (
    BLOCK_MICROPANELS,
    BLOCKED_TASKS_PER_THREAD,
    MAX_PRODUCT_TILE_ROWS,
    MIN_BLOCKED_PRODUCT_EXTENT,
    MIN_PRODUCT_TILE_COLUMNS,
    PANEL_COLUMNS,
    PANEL_DEPTH,
)
from tofuse.ir.blocked import (
    PACKED_BUFFER,
    BlockedContraction,
    BlockProduct,
    Factor,
    WorkspaceOffsets,
    first_index,
    iterations,
    tile_buffer,
)
from tofuse.ir.dims import Dim, size_hint, static_or, symbol
from tofuse.ir.kernel import (
    AffineExpr,
    Axis,
    Buffer,
    Compute,
    Kernel,
    Load,
    Reduce,
    StatementMap,
    Stmt,
    Store,
    buffers_of,
    iteration_axes,
    make_affine,
)
from tofuse.ir.nest import Nest
from tofuse.ir.rules import Rule
from tofuse.ir.schedule import BlockedSchedule, Microkernel, Target
from tofuse.ir.types import DType
from tofuse.schedule.axis_strides import axes_by_stride
from tofuse.schedule.backward_slice import backward_slice
from tofuse.schedule.schedule_legality import Unschedulable

BuildNest = Callable[[Kernel], Nest]  # the nest of a block, for one thread


@dataclass(frozen=True, eq=False)
class _Analysis:
    """The products of a kernel, and the axes of their results.

    `factors` are the names of the left and the right factor of each sum. The left factors alone
    have the axis `rows`, the right ones alone the axis `columns`. `outer` are all other axes.
    """

    kernel: Kernel
    sums: tuple[Reduce, ...]
    factors: tuple[tuple[str, str], ...]
    rows: str
    columns: str
    outer: tuple[str, ...]


def blocked_schedule(kernel: Kernel, target: Target) -> BlockedSchedule | None:
    """Return the tiles of a kernel of products; None if it has none that run by blocks."""
    found = _analyze(kernel)
    if found is None or not target.fma:
        return None
    rows, columns = (kernel.extent(a) for a in (found.rows, found.columns))
    if min(size_hint(rows), size_hint(columns)) < MIN_BLOCKED_PRODUCT_EXTENT:
        return None
    tile_rows = min(MAX_PRODUCT_TILE_ROWS, static_or(rows, MAX_PRODUCT_TILE_ROWS))
    outer = math.prod(size_hint(kernel.extent(a)) for a in found.outer)
    tiles = outer * -(-size_hint(rows) // tile_rows)
    wanted = -(-BLOCKED_TASKS_PER_THREAD * target.threads // tiles)
    per_task = -(-size_hint(columns) // wanted)
    panels = -(-size_hint(columns) // max(MIN_PRODUCT_TILE_COLUMNS, min(PANEL_COLUMNS, per_task)))
    tile_columns = -(-size_hint(columns) // (panels * WIDTH)) * WIDTH
    microkernel = _microkernel(found, target)
    is_tiled = microkernel is Microkernel.BF16_TILES
    most, micro_columns = microkernel_size(target)
    micro_rows = AMX_MICROPANEL_ROWS if is_tiled else micropanel_rows(rows, most)
    return BlockedSchedule(
        found.rows, tile_rows, found.columns, tile_columns, microkernel, micro_rows, micro_columns
    )


def _microkernel(found: _Analysis, target: Target) -> Microkernel:
    """Return the fastest instruction for the factors of a kernel.

    Those for bfloat16 need factors that bfloat16 holds exactly. They flush subnormal factors to
    zero.
    """
    is_bf16 = all(_is_bf16(found.kernel, v) for pair in found.factors for v in pair)
    if is_bf16 and target.bf16_tiles:
        return Microkernel.BF16_TILES
    return Microkernel.BF16_PAIRS if is_bf16 and target.bf16_dot else Microkernel.F32


def _is_bf16(kernel: Kernel, value: str) -> bool:
    """Whether bfloat16 holds a value exactly."""
    match kernel.definitions[value]:
        case Load(buffer=buffer):
            return any(b.name == buffer and b.dtype is DType.BF16 for b in kernel.buffers)
        case Compute(op="round_bf16"):
            return True
        case Compute(op="convert", operand_dtype=dtype):
            return dtype in (DType.I8, DType.U8, DType.BOOL)
    return False


def build_blocked(
    kernel: Kernel, schedule: BlockedSchedule, build_nest: BuildNest
) -> BlockedContraction:
    """Return the blocks of a kernel; raise Unschedulable if a part of it has no single nest."""
    found = _analyze(kernel)
    if found is None:
        raise Unschedulable(Rule.DIFFERENT_LOOPS())
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
        micropanel_elements(schedule.micro_rows, not p.left.line_major) for p in products
    )
    elements = [
        micropanel * BLOCK_MICROPANELS,
        PANEL_DEPTH * schedule.tile_columns,
        WIDTH * line_stride(PANEL_DEPTH),
        *(rows * tile_stride for _ in products),
    ]
    starts = [4 * sum(elements[:k]) for k in range(len(elements) + 1)]
    left, right, untransposed, *tiles, scratch = starts
    offsets = WorkspaceOffsets(left, right, untransposed, tuple(tiles), scratch)
    return offsets, scratch + -(-max(map(size_hint, scratch_bytes)) // 64) * 64


def _analyze(kernel: Kernel) -> _Analysis | None:
    """Return the products of a kernel, None if it reduces or stores anything else.

    The left factors alone have the rows, the right factors alone have the columns.
    """
    value_axes, stmt_axes = iteration_axes(kernel)
    sums = tuple(s for s in kernel.body if isinstance(s, Reduce))
    if not sums or any(s.op != "sum" or s.dtype is not DType.F32 for s in sums):
        return None
    result = value_axes[sums[0].name]
    stores = [s for s in kernel.body if isinstance(s, Store)]
    if any(stmt_axes[s] != result for s in stores) or not stores:
        return None
    if any(not isinstance(kernel.extent(a), int) for s in sums for a in s.over):
        return None
    if any(kernel.extent(a) == 0 for a in kernel.extents):
        return None
    pairs = [_factors(kernel, s, value_axes) for s in sums]
    found = [p for p in pairs if p is not None]
    if len(found) < len(pairs) or any(value_axes[s.name] != result for s in sums):
        return None
    by_stride = axes_by_stride(kernel, [(s.index, 1) for s in stores])
    last = next(a for a in reversed(by_stride) if a in result)
    oriented = [(y, x) if last in value_axes[x] - value_axes[y] else (x, y) for x, y in found]
    if _needs_reduction(kernel, [f for pair in oriented for f in pair]):
        return None
    columns = frozenset.intersection(*(value_axes[b] - value_axes[a] for a, b in oriented))
    rows = frozenset.intersection(*(value_axes[a] - value_axes[b] for a, b in oriented))
    columns, rows = columns & result, rows & result
    if not columns or not rows:
        return None

    def longest(axes: frozenset[str]) -> str:
        return max(axes, key=lambda a: (size_hint(kernel.extent(a)), by_stride.index(a)))

    fills_a_micropanel = size_hint(kernel.extent(last)) >= WIDTH
    row, column = longest(rows), longest(columns)
    column = last if last in columns and fills_a_micropanel else column
    outer = tuple(a for a in by_stride if a in result - {row, column})
    return _Analysis(kernel, sums, tuple(oriented), row, column, outer)


def _factors(
    kernel: Kernel, s: Reduce, value_axes: Mapping[str, frozenset[str]]
) -> tuple[str, str] | None:
    """Return the factors of a sum of products that both run over its depth."""
    product = kernel.definitions[s.arg]
    if not isinstance(product, Compute) or product.op != "mul" or product.dtype is not DType.F32:
        return None
    x, y = product.args
    if not isinstance(x, str) or not isinstance(y, str):
        return None
    over = frozenset(s.over)
    both = value_axes[x] & value_axes[y] >= over
    own = value_axes[x] - value_axes[y] and value_axes[y] - value_axes[x]
    return (x, y) if both and own else None


def _needs_reduction(kernel: Kernel, factors: Sequence[str]) -> bool:
    """Whether a factor depends on a reduction, so that it has no blocks of its own."""
    needed = backward_slice([kernel.definitions[f] for f in factors], kernel.definitions)
    return any(isinstance(d, Reduce) for d in needed)


class _Builder:
    """Builds the nests of blocks."""

    def __init__(
        self,
        found: _Analysis,
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
        most = PANEL_DEPTH * self.schedule.microkernel.step_elements
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
        line_major = several or self._is_line_major(stmts, line, depth[-1])
        stride = line_stride(PANEL_DEPTH) * microkernel.step_elements
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

    def _is_line_major(self, stmts: Iterable[Stmt], line: str, innermost: str) -> bool:
        """Whether more loads are contiguous along the depth than along the lines."""
        loads = [s for s in stmts if isinstance(s, Load)]
        along_depth = sum(s.index.coefficient(innermost) == 1 for s in loads)
        return along_depth >= sum(s.index.coefficient(line) == 1 for s in loads)

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
        """Return the nest of a block.

        The block has some iterations of each of the axes `counted`, for which this gives size
        hints, all iterations of each of the axes `whole`, and one iteration of each other axis.
        Buffers are indexed from their start, those of `local` from the start of the block.
        """
        kernel, own = self.kernel, {b.name for b in local}
        origins = {a: symbol(first_index(a), 0) for a in kernel.extents if a not in whole}
        counts = {a: symbol(iterations(a), hint) for a, hint in counted.items()}
        extents: dict[str, Dim] = {**{a: kernel.extent(a) for a in whole}, **counts}

        def from_origin(index: AffineExpr) -> AffineExpr:
            moved: Dim = index.const
            for axis, c in index.terms:
                moved = c * origins[axis] + moved if axis in origins else moved
            return AffineExpr(tuple((a, c) for a, c in index.terms if a in extents), moved)

        to_block = StatementMap(index=from_origin)
        used = {b for s in stmts for b in buffers_of(s)}
        block = Kernel(
            f"{kernel.name}.{name}",
            tuple(Axis(a, extents[a]) for a in kernel.extents if a in extents),
            (*(b for b in kernel.buffers if b.name in used), *local),
            (*kernel.symbols, *map(first_index, origins), *map(iterations, counts)),
            tuple(s if own.intersection(buffers_of(s)) else s.map(to_block) for s in stmts),
        )
        nest = self.build_nest(block)
        if len(nest.phases) != 1 or nest.phases[0].partials:
            raise Unschedulable(Rule.DIFFERENT_LOOPS())
        return nest


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
