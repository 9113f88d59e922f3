"""Kernel -> ProductChain: stages of nests and products over blocks of rows."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from tofuse.analysis.reachability import reachable
from tofuse.backends.cpu.llvm.matmul.pack import (
    AMX_MICROPANEL_ROWS,
    WIDTH,
    line_stride,
    microkernel_size,
    micropanel_rows,
    right_micropanel_elements,
    tile_stride,
)
from tofuse.backends.cpu.schedule.block_nests import BuildNest, block_nest
from tofuse.backends.cpu.schedule.block_sizes import microkernel_of
from tofuse.backends.cpu.schedule.chain_analysis import ChainAnalysis, ChainedSum, analyze_chain
from tofuse.backends.cpu.schedule.chain_masks import chain_masks, computed_share
from tofuse.backends.cpu.schedule.product_analysis import is_contiguous_along
from tofuse.cost.thresholds import (
    CHAIN_BLOCK_L2_SHARE,
    MAX_CHAIN_THREAD_WORKSPACE_BYTES,
    MIN_CHAIN_BLOCK_ROWS,
    MIN_CHAIN_TASKS,
)
from tofuse.ir.affine import make_affine
from tofuse.ir.blocked import PACKED_BUFFER, Factor, iterations, tile_buffer
from tofuse.ir.dims import Dim, size_hint, symbols_of
from tofuse.ir.kernel import (
    WRITES,
    Buffer,
    Compute,
    Kernel,
    Load,
    Reduce,
    Stmt,
    Store,
    iteration_axes,
)
from tofuse.ir.nest import Nest
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
from tofuse.ir.rules import Rule
from tofuse.ir.schedule import ChainSchedule, Microkernel, Target
from tofuse.ir.types import DType
from tofuse.schedule.axis_strides import axes_by_stride
from tofuse.schedule.backward_slice import backward_slice
from tofuse.schedule.schedule_legality import Unschedulable


def chain_schedule(kernel: Kernel, target: Target) -> ChainSchedule | None:
    """Return the row blocks of a kernel of chained products, None if it has none.

    They do not depend on the number of threads, and so neither do the bits of masked sums.
    """
    found = analyze_chain(kernel)
    if found is None or not target.fma:
        return None
    rows = kernel.extent(found.rows)
    microkernels: list[tuple[Microkernel, int, int]] = []
    row_bytes = 0
    for s in found.sums:
        microkernel = microkernel_of(kernel, [(s.left, s.right)], target)
        most, columns = microkernel_size(target)
        is_tiled = microkernel is Microkernel.BF16_TILES
        micro_rows = AMX_MICROPANEL_ROWS if is_tiled else micropanel_rows(rows, most)
        microkernels.append((microkernel, micro_rows, columns))
        row_bytes += 4 * line_stride(_steps(kernel, s, microkernel))
        row_bytes += 4 * line_stride(size_hint(kernel.extent(s.columns)))
    most_rows = int(target.l2_bytes * CHAIN_BLOCK_L2_SHARE) // row_bytes
    outer = math.prod(size_hint(kernel.extent(a)) for a in found.outer)
    wanted = -(-MIN_CHAIN_TASKS // max(1, outer))
    per_task = max(MIN_CHAIN_BLOCK_ROWS, min(most_rows, -(-size_hint(rows) // wanted)))
    unit = max(r for _, r, _ in microkernels)
    tile_rows = max(1, per_task // unit) * unit
    if isinstance(rows, int):
        blocks = -(-rows // tile_rows)
        tile_rows = -(-rows // (blocks * unit)) * unit
    return ChainSchedule(found.rows, tile_rows, tuple(microkernels))


def build_chain(kernel: Kernel, schedule: ChainSchedule, build_nest: BuildNest) -> ProductChain:
    """Return the stages of a kernel; raise Unschedulable if a part of it has no single nest."""
    found = analyze_chain(kernel)
    if found is None or found.rows != schedule.rows:
        raise Unschedulable(Rule.DIFFERENT_LOOPS())
    builder = _Builder(found, schedule, build_nest)
    stages = builder.stages()
    offsets, block_bytes = builder.workspace(stages)
    if block_bytes > MAX_CHAIN_THREAD_WORKSPACE_BYTES:
        raise Unschedulable(Rule.DIFFERENT_LOOPS())
    masks, parts = builder.masks, (found.outer, stages, offsets, block_bytes)
    share = computed_share(kernel, masks, schedule.rows, schedule.tile_rows)
    return ProductChain(kernel, schedule, *parts, masks, share)


def _steps(kernel: Kernel, s: ChainedSum, microkernel: Microkernel) -> int:
    """Return the steps of the microkernel for a row of a left factor."""
    elements = math.prod(size_hint(kernel.extent(a)) for a in s.depth)
    multiple = microkernel.depth_multiple
    return -(-elements // multiple) * multiple // microkernel.step_elements


class _Builder:
    """Builds the stages of a kernel."""

    def __init__(
        self, found: ChainAnalysis, schedule: ChainSchedule, build_nest: BuildNest
    ) -> None:
        self.found, self.kernel, self.schedule = found, found.kernel, schedule
        self.build_nest = build_nest
        self.value_axes, _ = iteration_axes(self.kernel)
        self.masks = chain_masks(found)
        self.products = [self._product(n, s) for n, s in enumerate(found.sums)]
        self.stage_count = 1 + max(found.stages.values())
        self.carried = self._carried()

    def stages(self) -> tuple[ChainStage, ...]:
        """Return all stages, in order."""
        return tuple(map(self._stage, range(self.stage_count)))

    def _stage(self, number: int) -> ChainStage:
        stages, definitions = self.found.stages, self.kernel.definitions
        products = [
            p
            for p, s in zip(self.products, self.found.sums, strict=True)
            if stages[definitions[s.left]] == number
        ]
        nests = [
            self._nest(f"stage{number}.{k}", number, stores)
            for k, stores in enumerate(self._separate(number, self._roots(number)))
        ]
        return ChainStage(tuple(nests), tuple(products))

    def _roots(self, number: int) -> list[Store]:
        """Return what a stage stores: left factors, numbers of rows for later stages, results."""
        found, definitions = self.found, self.kernel.definitions
        stores: list[Store] = []
        for p, s in zip(self.products, found.sums, strict=True):
            if found.stages[definitions[s.left]] == number:
                stores.append(self._left_store(p, s))
        row = make_affine([(found.rows, 1)])
        for r in self.carried:
            if found.stages[r] == number:
                stores.append(Store(row_buffer(r.name), row, r.name, r.dtype))
        results = (s for s in self.kernel.body if isinstance(s, Store))
        return [*stores, *(s for s in results if found.stages[s] == number)]

    def _separate(self, number: int, stores: Sequence[Store]) -> list[list[Store]]:
        """Return groups of the stores of a stage, one group for each nest.

        Two stores that need the same value of this stage are in one group.
        """
        groups: list[tuple[list[Store], set[Stmt]]] = []  # with what each computes
        for store in stores:
            own = [store]
            shared: set[Stmt] = {s for s in self._slice(number, store) if not isinstance(s, Load)}
            for group in [g for g in groups if g[1] & shared]:
                groups.remove(group)
                own, shared = group[0] + own, shared | group[1]
            groups.append((own, shared))
        return [own for own, _ in groups]

    def _slice(self, number: int, root: Stmt) -> list[Stmt]:
        """Return what computes a value or store in a stage, without what earlier stages have."""
        definitions = self.kernel.definitions

        def operands(stmt: Stmt) -> list[Stmt]:
            if self._is_ready(stmt, number):
                return []
            return [definitions[u] for u in stmt.uses]

        return list(reachable([root], operands))

    def _is_ready(self, stmt: Stmt, number: int) -> bool:
        """Whether a stage loads a value: a product, or a number of each row of an earlier stage."""
        if not isinstance(stmt, Reduce):
            return False
        return self.found.sum_of(stmt) is not None or self.found.stages[stmt] < number

    def _carried(self) -> list[Reduce]:
        """Return the values of one number per row that later stages load."""
        found, definitions = self.found, self.kernel.definitions
        lefts = {definitions[s.left]: found.stages[definitions[s.left]] for s in found.sums}
        roots: list[tuple[Stmt, int]] = [
            *lefts.items(),
            *((s, found.stages[s]) for s in self.kernel.body if isinstance(s, Store)),
        ]
        required = {name for mask in self.masks for name, _ in mask.required_maxima}
        carried = {
            s: None for s in self.kernel.body if isinstance(s, Reduce) and s.name in required
        }
        roots += [(s, found.stages[s]) for s in carried]
        while roots:
            root, number = roots.pop()
            for s in self._slice(number, root):
                is_early = isinstance(s, Reduce) and self._is_ready(s, number)
                if isinstance(s, Reduce) and is_early and found.sum_of(s) is None:
                    if s not in carried:
                        roots.append((s, found.stages[s]))
                    carried[s] = None
        return [s for s in self.kernel.body if isinstance(s, Reduce) and s in carried]

    def _nest(self, name: str, number: int, stores: Sequence[Store]) -> Nest:
        """Return the nest of some stores of a stage."""
        found = self.found
        needed: dict[Stmt, None] = {}
        for store in stores:
            needed |= dict.fromkeys(self._slice(number, store))
        row = make_affine([(found.rows, 1)])
        local: dict[str, Buffer] = {}
        stmts: list[Stmt] = []
        for s in self.kernel.body:
            if s not in needed or isinstance(s, Store):
                continue
            if isinstance(s, Reduce) and self._is_ready(s, number):
                n = found.sum_of(s)
                if n is None:
                    load = Load(s.name, row_buffer(s.name), row, s.dtype)
                else:
                    tile = [(found.rows, self._tile_stride(n)), (self.products[n].columns, 1)]
                    load = Load(s.name, tile_buffer(n), make_affine(tile), DType.F32)
                local[load.buffer] = Buffer(load.buffer, load.dtype, "in")
                stmts.append(load)
                continue
            stmts.append(s)
        outputs = {b.name for b in self.kernel.buffers}
        for store in stores:
            if store.buffer not in outputs:
                local[store.buffer] = Buffer(store.buffer, store.dtype, "out")
        stmts += stores
        masked = {m.axis for m in self.masks} & _axes_of(self.kernel, stmts)
        counted = {found.rows: self.schedule.tile_rows}
        counted |= {a: size_hint(self.kernel.extent(a)) for a in masked}
        whole = [a for a in self.kernel.extents if a not in (*counted, *found.outer)]
        return self._block(name, stmts, counted, whole, list(local.values()))

    def _block(
        self,
        name: str,
        stmts: Sequence[Stmt],
        counted: dict[str, int],
        whole: Sequence[str],
        local: Sequence[Buffer],
    ) -> Nest:
        used = _axes_of(self.kernel, stmts)
        whole = [a for a in whole if a in used]
        return block_nest(self.kernel, name, stmts, counted, whole, local, self.build_nest)

    # -- products --------------------------------------------------------------------------------

    def _product(self, n: int, s: ChainedSum) -> ChainProduct:
        kernel = self.kernel
        microkernel, *_ = self.schedule.microkernels[n]
        slice_of_right = self._ordered_slice(s.right)
        of_right = [(x.index, 1) for x in slice_of_right if isinstance(x, Load)]
        depth = tuple(a for a in axes_by_stride(kernel, of_right) if a in s.depth)
        steps = _steps(kernel, s, microkernel)
        several = microkernel.step_elements > 1
        line_major = several or not is_contiguous_along(kernel, s.right, s.columns, depth)
        stride = line_stride(steps) * microkernel.step_elements
        line_step, depth_step = (stride, 1) if line_major else (1, WIDTH)
        store = self._factor_store(
            PACKED_BUFFER, s.right, microkernel, (s.columns, line_step), depth, depth_step
        )
        stmts = [x for x in self._ordered_slice(store.value) if not isinstance(x, WRITES)]
        packed = Buffer(PACKED_BUFFER, microkernel.dtype, "out")
        nest = self._block(f"right{n}", [*stmts, store], {s.columns: WIDTH}, depth, [packed])
        around = tuple(a for a in self.found.outer if a in self.value_axes[s.right])
        factor = Factor(nest, line_major)
        return ChainProduct(n, s.total.name, s.columns, depth, steps, factor, around)

    def _left_store(self, p: ChainProduct, s: ChainedSum) -> Store:
        microkernel, *_ = self.schedule.microkernels[p.number]
        stride = line_stride(p.steps) * microkernel.step_elements
        line = self.found.rows, stride
        return self._factor_store(left_buffer(p.number), s.left, microkernel, line, p.depth, 1)

    def _factor_store(
        self,
        buffer: str,
        value: str,
        microkernel: Microkernel,
        line: tuple[str, int],
        depth: Sequence[str],
        depth_step: int,
    ) -> Store:
        """Return the store of a factor whose lines run along an axis, with their stride."""
        terms: list[tuple[str, Dim]] = [line]
        for axis in reversed(depth):
            terms.append((axis, depth_step))
            depth_step *= size_hint(self.kernel.extent(axis))
        match self.kernel.definitions[value]:
            case Compute(op="round_bf16", args=(str(unrounded),)) if microkernel.step_elements > 1:
                value = unrounded  # the store rounds
        return Store(buffer, make_affine(terms), value, microkernel.dtype)

    def _ordered_slice(self, value: object) -> list[Stmt]:
        """Return the statements that compute a value, in order."""
        assert isinstance(value, str)
        needed = backward_slice([self.kernel.definitions[value]], self.kernel.definitions)
        return [s for s in self.kernel.body if s in needed]

    # -- workspace -------------------------------------------------------------------------------

    def _tile_stride(self, n: int) -> int:
        """Return the elements between rows of the sums of a product."""
        return tile_stride(size_hint(self.kernel.extent(self.products[n].columns)))

    def workspace(self, stages: Sequence[ChainStage]) -> tuple[dict[str, int], int]:
        """Return where the parts of a thread's workspace begin, and its size in bytes."""
        sizes: dict[str, int] = {}
        tile_rows = self.schedule.tile_rows
        for p in self.products:
            _, micro_rows, _ = self.schedule.microkernels[p.number]
            rows = _rounded(tile_rows, micro_rows)
            micropanels = -(-size_hint(self.kernel.extent(p.columns)) // WIDTH)
            sizes[right_panel(p.number)] = 4 * micropanels * right_micropanel_elements(p.steps)
            sizes[left_buffer(p.number)] = 4 * rows * line_stride(p.steps)
            sizes[tile_buffer(p.number)] = 4 * rows * self._tile_stride(p.number)
        sizes |= {row_buffer(r.name): 8 * tile_rows for r in self.carried}
        transposed = [p.steps for p in self.products if p.right.line_major]
        sizes[UNTRANSPOSED] = max((4 * WIDTH * line_stride(n) for n in transposed), default=0)
        nests = [n for s in stages for n in s.nests] + [p.right.pack for p in self.products]
        scratch = [n.block_bytes for n in nests]
        # hints of the iterations of a block are the most that it has
        bounded = {iterations(a) for a in self.kernel.extents}
        if not all(bounded.issuperset(symbols_of(n)) for n in scratch):
            raise Unschedulable(Rule.DIFFERENT_LOOPS())
        sizes[SCRATCH] = max(map(size_hint, scratch))
        offsets, end = {}, 0
        for name, size in sizes.items():
            offsets[name] = end
            end += _rounded(size, 64)
        return offsets, end


def _rounded(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def _axes_of(kernel: Kernel, stmts: Collection[Stmt]) -> set[str]:
    """Return the axes over which statements of a kernel run."""
    found = {a for s in stmts for i in s.indices for a in i.axes}
    return found | {a for s in stmts if isinstance(s, Reduce) for a in s.over}
