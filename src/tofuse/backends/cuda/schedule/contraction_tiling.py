"""Kernel -> Tiling, for kernels with matrix products: tiles of rows, columns and depth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tofuse.backends.cuda.schedule.choose_tiling import next_power_of_2
from tofuse.cost.thresholds import (
    CONTRACTION_DEPTH_BYTES,
    CONTRACTION_ELEMENTS_PER_WARP,
    CONTRACTION_SPLITS,
    CONTRACTION_STAGES,
    CONTRACTION_TILE,
    INSTRUCTION_TILE,
    MIN_CONTRACTION_STAGES,
    MIN_CONTRACTION_TILE,
    RESERVED_SHARED_BYTES,
    SHARED_OPERAND_ROWS,
)
from tofuse.ir.dims import product, size_hint
from tofuse.ir.kernel import WRITES, Compute, Kernel, Reduce, Stmt, Store, iteration_axes
from tofuse.ir.rules import Rule
from tofuse.ir.tile import Contraction, GpuTarget, Tile, Tiling
from tofuse.ir.types import DType
from tofuse.schedule.axis_strides import axes_by_stride
from tofuse.schedule.schedule_legality import Unschedulable

ROUNDINGS = {f"round_{d.value}": d for d in (DType.F16, DType.BF16)}


@dataclass(frozen=True)
class ContractionAxes:
    """The axes of a matrix product: of both factors and the result, of one factor, and summed."""

    batch: frozenset[str]
    rows: frozenset[str]
    columns: frozenset[str]
    depth: frozenset[str]

    def transposed(self) -> ContractionAxes:
        return replace(self, rows=self.columns, columns=self.rows)


def find_contractions(kernel: Kernel) -> tuple[Contraction, ...]:
    """Return the sums of a kernel that matrix instructions compute, with rows on the left.

    Such a sum is over products of two values, each of which has axes that the other one lacks.
    Smaller products than a matrix instruction's are ordinary sums.
    """
    value_axes, _ = iteration_axes(kernel)
    definitions = kernel.definitions
    readers: dict[str, int] = {}
    for name in (u for s in kernel.body for u in s.uses):
        readers[name] = readers.get(name, 0) + 1
    found = []
    for total in (s for s in kernel.body if isinstance(s, Reduce)):
        factors = definitions[total.arg]
        if total.op != "sum" or total.dtype is not DType.F32 or readers[total.arg] > 1:
            continue
        if not isinstance(factors, Compute) or factors.op != "mul":
            continue
        left, right = factors.args
        if not isinstance(left, str) or not isinstance(right, str):
            continue
        dtypes = {_factor_dtype(definitions[name]) for name in (left, right)}
        over, lefts, rights = frozenset(total.over), value_axes[left], value_axes[right]
        if len(dtypes) > 1 or not over <= lefts & rights:
            continue
        points = size_hint(product(kernel.extent(a) for a in lefts ^ rights | over))
        if lefts - rights and rights - lefts and points >= INSTRUCTION_TILE**3:
            found.append(Contraction(total, total.arg, left, right, dtypes.pop()))
    return _same_sides(kernel, found, value_axes)


def _factor_dtype(stmt: Stmt) -> DType:
    """Return the dtype whose numbers a factor is rounded to."""
    return ROUNDINGS.get(stmt.op, DType.F32) if isinstance(stmt, Compute) else DType.F32


def _same_sides(
    kernel: Kernel, found: list[Contraction], value_axes: Mapping[str, frozenset[str]]
) -> tuple[Contraction, ...]:
    """Exchange factors so that all products have the same rows, and stores contiguous columns."""
    if not found:
        return ()
    columns = contraction_axes(found[0], value_axes).columns
    stores = [s.index for s in kernel.body if isinstance(s, Store)]
    contiguous = {a for index in stores for a, step in index.terms if step == 1}
    rows = contraction_axes(found[0], value_axes).rows
    if contiguous & rows and not contiguous & columns:
        columns = rows
    return tuple(
        c if contraction_axes(c, value_axes).columns == columns else c.transposed() for c in found
    )


def contraction_axes(c: Contraction, value_axes: Mapping[str, frozenset[str]]) -> ContractionAxes:
    """Return the axes of a matrix product."""
    left, right, depth = value_axes[c.left], value_axes[c.right], frozenset(c.total.over)
    return ContractionAxes((left & right) - depth, left - right, right - left, depth)


def contraction_tiling(
    kernel: Kernel, contractions: tuple[Contraction, ...], target: GpuTarget
) -> Tiling:
    """Return tiles of rows, columns and depth; raise Unschedulable for other loops."""
    value_axes, _ = iteration_axes(kernel)
    axes = contraction_axes(contractions[0], value_axes)
    _check_loops(kernel, contractions, axes)
    weights = [(i, 1) for s in kernel.body for i in s.indices]
    order = axes_by_stride(kernel, weights)

    def ordered(members: frozenset[str]) -> tuple[str, ...]:
        return tuple(a for a in order if a in members)

    def extent(members: frozenset[str]) -> int:
        return size_hint(product(kernel.extent(a) for a in members))

    rows, columns, depth = (extent(a) for a in (axes.rows, axes.columns, axes.depth))
    batch, itemsize = extent(axes.batch), contractions[0].dtype.itemsize
    sides = _block_sides(rows, columns, batch, len(contractions), target)
    deep = max(INSTRUCTION_TILE, CONTRACTION_DEPTH_BYTES // itemsize)
    deep = min(deep, max(INSTRUCTION_TILE, next_power_of_2(depth)))
    loaded = deep * (sides[0] + len(contractions) * sides[1]) * itemsize
    stages = _stages(loaded, target)
    programs = batch * -(-rows // sides[0]) * -(-columns // sides[1])
    splits = _splits(kernel, contractions, programs, depth // deep, target)
    tiles = [
        Tile(ordered(axes.rows), sides[0], "grid"),
        Tile(ordered(axes.columns), sides[1], "grid"),
        Tile(ordered(axes.depth), deep, "loop" if splits == 1 else "split"),
    ]
    if axes.batch:
        tiles = [Tile(ordered(axes.batch), 1, "grid"), *tiles]
    elements = sides[0] * sides[1] * len(contractions)
    warps = 4 if elements <= 4 * CONTRACTION_ELEMENTS_PER_WARP else 8
    return Tiling(tuple(tiles), warps, splits, stages, SHARED_OPERAND_ROWS)


def _check_loops(
    kernel: Kernel, contractions: tuple[Contraction, ...], axes: ContractionAxes
) -> None:
    """Raise Unschedulable unless every statement belongs to a factor or to the result."""
    value_axes, statement_axes = iteration_axes(kernel)
    if any(contraction_axes(c, value_axes) != axes for c in contractions):
        raise Unschedulable(Rule.DIFFERENT_PRODUCTS())
    totals = {c.total for c in contractions}
    products = {c.product for c in contractions}
    known = axes.batch | axes.rows | axes.columns | axes.depth
    for s in kernel.body:
        if s in totals or (not isinstance(s, WRITES) and s.name in products):
            continue
        own = statement_axes[s]
        on_both_sides = own & axes.rows and own & axes.columns and own & axes.depth
        reduces_result = isinstance(s, Reduce) and not axes.depth.issuperset(s.over)
        if on_both_sides or reduces_result or not own <= known:
            raise Unschedulable(Rule.OTHER_LOOPS_OF_PRODUCT())


def _block_sides(
    rows: int, columns: int, batch: int, products: int, target: GpuTarget
) -> tuple[int, int]:
    """Return the rows and columns of a block: as many as registers hold, but one per processor."""
    block_rows = max(INSTRUCTION_TILE, min(CONTRACTION_TILE, next_power_of_2(rows)))
    block_columns = max(INSTRUCTION_TILE, min(CONTRACTION_TILE, next_power_of_2(columns)))

    def is_too_large() -> bool:
        if products * block_rows * block_columns > CONTRACTION_TILE**2:
            return True
        programs = batch * -(-rows // block_rows) * -(-columns // block_columns)
        has_idle = programs < target.multiprocessors
        return has_idle and max(block_rows, block_columns) > MIN_CONTRACTION_TILE

    while is_too_large():
        if block_columns >= block_rows:
            block_columns //= 2
        else:
            block_rows //= 2
    return block_rows, block_columns


def _stages(nbytes: int, target: GpuTarget) -> int:
    """Return how many blocks of so many bytes are in flight.

    That is what half of the shared memory holds, for two instances; or a few in all of it for one.
    """
    most = (target.shared_bytes - RESERVED_SHARED_BYTES) // nbytes
    few = min(MIN_CONTRACTION_STAGES, most)
    return max(1, few, min(CONTRACTION_STAGES, target.shared_bytes // 2 // nbytes))


def _splits(
    kernel: Kernel,
    contractions: tuple[Contraction, ...],
    programs: int,
    steps: int,
    target: GpuTarget,
) -> int:
    """Return how many program instances share the loop over the depth of a block.

    None share it if a factor waits for another sum over the depth, such as a row's mean.
    """
    sums = [s for s in kernel.body if isinstance(s, Reduce)]
    if len(sums) > len(contractions):
        return 1
    return max(1, min(CONTRACTION_SPLITS, target.multiprocessors // max(1, programs), steps // 4))
