"""Kernel -> BlockedContraction: blocks of products, their factors packed as they are computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tofuse.analysis.live_statements import live_statements
from tofuse.backends.cpu.llvm.matmul.pack import (
    TILE_ROWS,
    WIDTH,
    line_stride,
    micropanel_elements,
    micropanel_rows,
)
from tofuse.cost.thresholds import (
    BLOCK_MICROPANELS,
    BLOCKED_TASKS_PER_THREAD,
    MAX_BLOCK_ROWS,
    MIN_BLOCK_COLUMNS,
    MIN_BLOCKED_ROWS,
    PANEL_COLUMNS,
    PANEL_DEPTH,
)
from tofuse.ir.blocked import (
    PACKED,
    BlockedContraction,
    BlockNest,
    BlockProduct,
    Factor,
    WorkspaceOffsets,
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
    """The products of a kernel, and the axes that all of them share.

    `factors` are the names of the left and the right factor of each sum.
    """

    kernel: Kernel
    value_axes: Mapping[str, frozenset[str]]
    sums: tuple[Reduce, ...]
    factors: tuple[tuple[str, str], ...]
    rows: str
    columns: str
    outer: tuple[str, ...]


def blocked_schedule(kernel: Kernel, target: Target) -> BlockedSchedule | None:
    """Return the tiles of a kernel of products; None if it has none that run by blocks."""
    found = _analyze(kernel)
    if found is None or not target.avx512:
        return None
    rows, columns = (kernel.extent(a) for a in (found.rows, found.columns))
    if size_hint(rows) < MIN_BLOCKED_ROWS:
        return None
    row_block = min(MAX_BLOCK_ROWS, static_or(rows, MAX_BLOCK_ROWS))
    outer = math.prod(size_hint(kernel.extent(a)) for a in found.outer)
    tasks = outer * -(-size_hint(rows) // row_block)
    wanted = -(-BLOCKED_TASKS_PER_THREAD * target.threads // tasks)
    widest = max(MIN_BLOCK_COLUMNS, min(PANEL_COLUMNS, -(-size_hint(columns) // wanted)))
    panels = -(-size_hint(columns) // widest)
    column_block = -(-size_hint(columns) // (panels * WIDTH)) * WIDTH
    extents = tuple((a.name, a.extent) for a in kernel.axes)
    microkernel = _microkernel(found, target)
    return BlockedSchedule(
        found.rows,
        found.columns,
        row_block,
        column_block,
        microkernel,
        TILE_ROWS if microkernel is Microkernel.BF16_TILES else micropanel_rows(rows),
        extents,
    )


def _microkernel(found: _Analysis, target: Target) -> Microkernel:
    """Return the fastest instruction for the factors of a kernel.

    Those of bfloat16 are for factors that bfloat16 holds, and take subnormal ones for zeros.
    """
    is_bf16 = all(_is_bf16(found.kernel, v) for pair in found.factors for v in pair)
    if is_bf16 and target.bf16_tiles:
        return Microkernel.BF16_TILES
    return Microkernel.BF16_DOT if is_bf16 and target.bf16_dot else Microkernel.F32


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
    tile_stride = line_stride(schedule.column_block)
    epilogue = builder.epilogue(tile_stride)
    nests = [*(f.pack.nest for p in products for f in (p.left, p.right)), epilogue.nest]
    sizes = [n.block_bytes for n in nests]
    if not all(isinstance(size, int) for size in sizes):
        raise Unschedulable(Rule.DIFFERENT_LOOPS())
    rows = -(-schedule.row_block // schedule.micro_rows) * schedule.micro_rows
    micropanel = max(
        micropanel_elements(schedule.micro_rows, not p.left.line_major) for p in products
    )
    parts = [
        4 * micropanel * BLOCK_MICROPANELS,
        4 * PANEL_DEPTH * schedule.column_block,
        4 * WIDTH * line_stride(PANEL_DEPTH),
        *(4 * rows * tile_stride for _ in products),
    ]
    starts = [sum(parts[:k]) for k in range(len(parts) + 1)]
    left, right, stage, *tiles, scratch = starts
    offsets = WorkspaceOffsets(left, right, stage, tuple(tiles), scratch)
    block_bytes = scratch + -(-max(map(size_hint, sizes)) // 64) * 64
    return BlockedContraction(
        kernel, schedule, found.outer, products, epilogue, tile_stride, offsets, block_bytes
    )


def _analyze(kernel: Kernel) -> _Analysis | None:
    """Return the products of a kernel, None unless all of its reductions are products.

    All have the same rows and columns: the axes of one factor only.
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
    oriented: list[tuple[str, str]] = []
    for s, (x, y) in zip(sums, found, strict=True):
        left, right = (y, x) if last in value_axes[x] - value_axes[y] else (x, y)
        if not _is_packable(kernel, s, (left, right)):
            return None
        oriented.append((left, right))
    columns = frozenset.intersection(*(value_axes[b] - value_axes[a] for a, b in oriented))
    rows = frozenset.intersection(*(value_axes[a] - value_axes[b] for a, b in oriented))
    columns, rows = columns & result, rows & result
    if not columns or not rows:
        return None

    def longest(axes: frozenset[str]) -> str:
        return max(axes, key=lambda a: (size_hint(kernel.extent(a)), by_stride.index(a)))

    row, column = longest(rows), last if last in columns else longest(columns)
    outer = tuple(a for a in by_stride if a in result - {row, column})
    return _Analysis(kernel, value_axes, sums, tuple(oriented), row, column, outer)


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


def _is_packable(kernel: Kernel, s: Reduce, factors: Sequence[str]) -> bool:
    """Whether blocks of both factors are computed without reductions or stores."""
    needed = backward_slice([kernel.definitions[f] for f in factors], kernel.definitions)
    return not any(isinstance(d, Reduce) for d in needed)


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
        total, (left, right) = self.found.sums[n], self.found.factors[n]
        loads = [
            (s.index, 1)
            for s in backward_slice([self.kernel.definitions[right]], self.kernel.definitions)
            if isinstance(s, Load)
        ]
        depth = tuple(a for a in axes_by_stride(self.kernel, loads) if a in total.over)
        most = PANEL_DEPTH * self.schedule.microkernel.step_elements
        blocked, step = _depth_block([size_hint(self.kernel.extent(a)) for a in depth], most)
        block = depth, blocked, step
        a = self._factor(f"left{n}", left, self.schedule.rows, *block)
        b = self._factor(f"right{n}", right, self.schedule.columns, *block)
        return BlockProduct(total, depth, blocked, step, a, b)

    def _factor(
        self,
        name: str,
        value: str,
        line: str,
        depth: Sequence[str],
        blocked: int,
        step: int,
    ) -> Factor:
        """Return the nest that packs blocks of a factor whose lines run along the axis `line`."""
        needed = backward_slice([self.kernel.definitions[value]], self.kernel.definitions)
        stmts = [s for s in self.kernel.body if s in needed]
        inside = depth[blocked + 1 :]
        dtype = self.schedule.microkernel.dtype
        per_step = self.schedule.microkernel.step_elements
        line_major = per_step > 1 or self._is_line_major(stmts, line, depth[-1])
        inner = [
            math.prod(size_hint(self.kernel.extent(a)) for a in depth[k + 1 :])
            for k in range(len(depth))
        ]
        width = WIDTH if name.startswith("right") else WIDTH // 2
        lines = line_stride(PANEL_DEPTH) * per_step
        line_step, depth_step = (lines, 1) if line_major else (1, width)
        terms = [(line, line_step)]
        terms += [(a, inner[k] * depth_step) for k, a in enumerate(depth) if k >= blocked]
        match self.kernel.definitions[value]:
            case Compute(op="round_bf16", args=(str(unrounded),)) if dtype is DType.BF16:
                value = unrounded  # the store rounds
        store = Store(PACKED, make_affine(terms), value, dtype)
        hints = {line: WIDTH, depth[blocked]: step}
        nest = self._block(
            name, live_statements([*stmts, store]), hints, inside, [Buffer(PACKED, dtype, "out")]
        )
        return Factor(nest, line_major)

    def _is_line_major(self, stmts: Iterable[Stmt], line: str, innermost: str) -> bool:
        """Whether more loads are contiguous along the depth than along the lines."""
        loads = [s for s in stmts if isinstance(s, Load)]
        along_depth = sum(s.index.coefficient(innermost) == 1 for s in loads)
        return along_depth >= sum(s.index.coefficient(line) == 1 for s in loads)

    def epilogue(self, tile_stride: int) -> BlockNest:
        """Return the nest that computes the stored values from the tiles of the sums."""
        rows, columns = self.schedule.rows, self.schedule.columns
        sums = {s: n for n, s in enumerate(self.found.sums)}
        tile = make_affine([(rows, tile_stride), (columns, 1)])
        body: list[Stmt] = [
            Load(s.name, f"tile{sums[s]}", tile, DType.F32) if s in sums else s
            for s in self.kernel.body
        ]
        tiles = [Buffer(f"tile{n}", DType.F32, "in") for n in range(len(sums))]
        hints = {rows: self.schedule.row_block, columns: self.schedule.column_block}
        return self._block("epilogue", live_statements(body), hints, (), tiles)

    def _block(
        self,
        name: str,
        stmts: Sequence[Stmt],
        counted: Mapping[str, int],
        whole: Sequence[str],
        local: Sequence[Buffer],
    ) -> BlockNest:
        """Return a nest over blocks: of `counted` axes with size hints, and of `whole` axes.

        All other axes have one iteration. The indices of the buffers `local` count from the start
        of the block.
        """
        kernel = self.kernel
        axes = [a for a in kernel.axes if a.name not in whole]
        origins = {a.name: symbol(f"{a.name}_first", 0) for a in axes}
        counts = {a: symbol(f"{a}_count", hint) for a, hint in counted.items()}
        inside = {*counted, *whole}

        def from_origin(index: AffineExpr) -> AffineExpr:
            moved: Dim = index.const
            for axis, c in index.terms:
                if axis in origins:
                    moved = c * origins[axis] + moved
            return AffineExpr(tuple((a, c) for a, c in index.terms if a in inside), moved)

        own = {b.name for b in local}
        to_block = StatementMap(index=from_origin)
        body = tuple(s if own.intersection(buffers_of(s)) else s.map(to_block) for s in stmts)
        used = {b for s in stmts for b in buffers_of(s)}
        extents: dict[str, Dim] = {**{a: kernel.extent(a) for a in whole}, **counts}
        names = [*(f"{a}_first" for a in origins), *(f"{a}_count" for a in counts)]
        block = Kernel(
            f"{kernel.name}.{name}",
            tuple(Axis(a.name, extents[a.name]) for a in kernel.axes if a.name in extents),
            (*(b for b in kernel.buffers if b.name in used), *local),
            (*kernel.symbols, *names),
            body,
        )
        nest = self.build_nest(block)
        if len(nest.phases) != 1 or nest.phases[0].partials:
            raise Unschedulable(Rule.DIFFERENT_LOOPS())
        return BlockNest(
            nest,
            tuple((a, f"{a}_first") for a in origins),
            tuple((a, f"{a}_count") for a in counts),
        )


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
