"""LLVM IR of the loops of a phase and the statements in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from typing_extensions import assert_never

from tofuse.backends.cpu.llvm.active_reductions import ActiveReductions
from tofuse.backends.cpu.llvm.carries import ActiveCarries
from tofuse.backends.cpu.llvm.function_emitter import FunctionEmitter, prefetch, tail_masks
from tofuse.backends.cpu.llvm.index_set_split import Segment, split_index_set
from tofuse.backends.cpu.llvm.ir_text import FunctionBuilder
from tofuse.backends.cpu.llvm.peel import peel_count, stores_to_align
from tofuse.backends.cpu.llvm.random import emit_uniform
from tofuse.backends.cpu.llvm.register_transpose import (
    find_transposed_tile,
    is_full_tile,
    transpose_tile,
)
from tofuse.backends.cpu.llvm.scans import emit_scan
from tofuse.backends.cpu.llvm.scatters import emit_scatter
from tofuse.backends.cpu.llvm.statements import (
    emit_compute,
    emit_gather,
    emit_in_range,
    emit_iota,
    emit_load,
    emit_reload,
    emit_spill,
    emit_store,
)
from tofuse.backends.cpu.llvm.unroll_and_jam import can_copy, copy_iterations
from tofuse.cost.thresholds import MAX_KERNEL_STATEMENTS
from tofuse.ir.dims import Dim
from tofuse.ir.interleave import interleave_groups
from tofuse.ir.kernel import (
    WRITES,
    Compute,
    Gather,
    InRange,
    Iota,
    Load,
    Next,
    Previous,
    Reduce,
    Scan,
    Scatter,
    Store,
    Uniform,
)
from tofuse.ir.nest import For, Nest, Node, Reload, StmtNode
from tofuse.ir.schedule import Loop
from tofuse.ir.staged_sum import FIRST_STAGE_TERMS


class LoopEmitter:
    """Emits loops through a function emitter and tracks the reductions in progress."""

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        self.buffer_dtypes = {b.name: b.dtype for b in nest.kernel.buffers}
        self.reductions, self.carries = ActiveReductions(nest), ActiveCarries()

    def trip_count(self, emitter: FunctionEmitter, loop: Loop) -> str:
        """Return the number of iterations of a loop."""
        extent = self.nest.kernel.extent(loop.axis)
        if not loop.strip:
            return emitter.size(extent)
        if isinstance(extent, int):
            return str(-(-extent // loop.strip))
        more = emitter.f.let(f"add i64 {emitter.size(extent)}, {loop.strip - 1}")
        return emitter.f.let(f"sdiv i64 {more}, {loop.strip}")

    def set_loop_index(self, emitter: FunctionEmitter, loop: Loop, index: str) -> None:
        """Set the index of a loop, or the start of the tile if it steps over tiles."""
        if loop.strip:
            emitter.tile_starts[loop.axis] = emitter.f.let(f"mul i64 {index}, {loop.strip}")
            emitter.indices[loop.axis] = emitter.tile_starts[loop.axis]
        else:
            emitter.indices[loop.axis] = index

    # -- loops -----------------------------------------------------------------------------------

    def emit_nodes(self, emitter: FunctionEmitter, nodes: Sequence[Node]) -> None:
        """Emit nodes in order."""
        for node in nodes:
            match node:
                case StmtNode():
                    self._emit_statement(emitter, node)
                case Reload():
                    emit_reload(emitter, node)
                case For():
                    self._emit_loop(emitter, node)
                case _:
                    assert_never(node)

    def emit_split_nodes(
        self, emitter: FunctionEmitter, nodes: Sequence[Node], loops: Sequence[Loop]
    ) -> None:
        """Emit the body of `loops`; if the index of one decides guards, emit it per segment."""
        f, outer_guards = emitter.f, emitter.known_guards
        for axis in (lp.axis for lp in loops if not lp.strip and emitter.transposed_tile is None):
            extent, index = self.nest.kernel.extent(axis), emitter.indices[axis]
            if not isinstance(extent, int):
                continue
            segments = split_index_set(nodes, axis, extent, 1, outer_guards)
            if 1 < len(segments) <= MAX_KERNEL_STATEMENTS // len(self.nest.kernel.body):
                for s in segments:
                    above = f.let(f"icmp sge i64 {index}, {s.start}")
                    below = f.let(f"icmp slt i64 {index}, {s.end}")
                    with self.scope(emitter), f.if_then(f.let(f"and i1 {above}, {below}")):
                        emitter.known_guards = outer_guards | s.guards
                        self.emit_nodes(emitter, nodes)
                emitter.known_guards = outer_guards
                return
        self.emit_nodes(emitter, nodes)

    def _emit_loop(self, emitter: FunctionEmitter, node: For) -> None:
        """Emit a loop; if it runs over a tile with transposed accesses, test for a full tile."""
        f, tile = emitter.f, None
        if not emitter.transposed_tile:
            tile = find_transposed_tile(self.nest, node, self.buffer_dtypes)
        if tile is None or node.reductions or node.carries:
            self._emit_plain_loop(emitter, node)
            return
        is_full = is_full_tile(emitter, tile)
        transpose = transpose_tile(emitter, tile, self.buffer_dtypes)
        with self.scope(emitter), f.if_then(is_full), transpose:
            self._emit_plain_loop(emitter, node)
        if is_full != "true":
            with self.scope(emitter), f.if_then(f.let(f"xor i1 {is_full}, true")):
                self._emit_plain_loop(emitter, node)

    def _emit_plain_loop(self, emitter: FunctionEmitter, node: For) -> None:
        """Emit a loop, and the reductions that begin and end with it."""
        f, reductions = emitter.f, self.reductions
        for a in node.reductions:
            reductions.begin(emitter, a)
        for c in node.carries:
            self.carries.begin(emitter, c)
        loop, loops = node.loop, self.nest.schedule.loops
        extent: Dim = self.nest.kernel.extent(loop.axis)
        lo, hi = "0", emitter.size(extent)
        if not loop.strip and loop.axis in emitter.tile_starts:
            lo = emitter.tile_starts[loop.axis]
            strip = next(lp.strip for lp in loops if lp.axis == loop.axis and lp.strip)
            end = f.let(f"add i64 {lo}, {strip}")
            divides = isinstance(extent, int) and extent % strip == 0
            is_full = emitter.transposed_tile is not None or divides
            if not is_full:
                less = f.let(f"icmp slt i64 {end}, {hi}")
                end = f.let(f"select i1 {less}, i64 {end}, i64 {hi}")
            hi, extent = end, strip if is_full else 0
        innermost = loop is loops[-1]
        if loop.strip:
            trips = self.trip_count(emitter, loop)
            with self.scope(emitter), f.loop("0", trips, "1") as index:
                self.set_loop_index(emitter, loop, index)
                self.emit_nodes(emitter, node.body)
                reductions.fold_due_stages(emitter, [loop], node.body)
        elif innermost and self.nest.schedule.vector > 1:
            known = extent if isinstance(extent, int) and extent else None
            self._vector_loop(emitter, node, lo, hi, known)
        else:
            self._scalar_loop(emitter, node, lo, hi)
        for a in node.reductions:
            reductions.finish(emitter, a)

    def _scalar_loop(self, emitter: FunctionEmitter, node: For, lo: str, hi: str) -> None:
        """Emit a loop that does not run in vectors, several iterations at once if registers do."""
        f, loop = emitter.f, node.loop
        is_whole = lo == "0" and emitter.transposed_tile is None
        jams = loop.jam > 1 and can_copy(node, self.nest, self.reductions, is_whole=is_whole)
        if jams:
            lo = self._jammed_loop(emitter, node, lo, hi)
            if lo == hi:
                return
        with self.scope(emitter), f.loop(lo, hi, "1") as step:
            emitter.indices[loop.axis] = _index_of_step(f, node, step, lo, hi, 1)
            self.emit_split_nodes(emitter, node.body, [loop])
            if not jams:
                self.reductions.fold_due_stages(emitter, [loop], node.body)

    def _jammed_loop(self, emitter: FunctionEmitter, node: For, lo: str, hi: str) -> str:
        """Emit a loop that runs several iterations at once; return where the others begin.

        If their number is known, they run at once too.
        """
        f, axis, jam = emitter.f, node.loop.axis, node.loop.jam
        extent = self.nest.kernel.extent(axis)
        known = extent if isinstance(extent, int) and hi == str(extent) and lo == "0" else None
        if known is None:
            span = f.let(f"sub i64 {hi}, {lo}")
            end = f.let(f"sub i64 {hi}, {f.let(f'srem i64 {span}, {jam}')}")
        else:
            end = str(known - known % jam)
        if known is None or known > jam:
            with self.scope(emitter), f.loop(lo, end, str(jam)) as index:
                self._copied_body(emitter, node, index, jam)
        elif known == jam:
            with self.scope(emitter):
                self._copied_body(emitter, node, lo, jam)
        if known is not None and known % jam:
            with self.scope(emitter):
                self._copied_body(emitter, node, end, known % jam)
        return end if known is None else hi

    def _copied_body(self, emitter: FunctionEmitter, node: For, index: str, count: int) -> None:
        """Emit the body of a loop for `count` iterations at once, the first at an index."""
        emitter.indices[node.loop.axis] = index
        terms = dict(self.reductions.array_terms)
        self.emit_nodes(emitter, copy_iterations(node, count, self.reductions))
        self.reductions.array_terms = terms
        if count == node.loop.jam:
            emitter.indices[node.loop.axis] = emitter.f.let(f"add i64 {index}, {count - 1}")
            self.reductions.fold_due_stages(emitter, [node.loop], node.body, count)

    def _vector_loop(
        self, emitter: FunctionEmitter, node: For, lo: str, hi: str, known: int | None
    ) -> None:
        """Emit a vector loop, in segments in which guards are known; see `_vector_groups`."""
        outer = self.reductions.begin_inner(emitter, node)
        stmts, axis = [n.stmt for n in node.body if isinstance(n, StmtNode)], node.loop.axis
        if not emitter.transposed_tile:
            emitter.interleave_groups = interleave_groups(stmts, axis)
        extent, outer_guards = self.nest.kernel.extent(axis), emitter.known_guards
        step = self.nest.schedule.vector * self.nest.schedule.unroll
        segments = [Segment(0, 0, {})]  # all of the loop
        if isinstance(extent, int) and (lo == "0" or not emitter.transposed_tile):
            segments = split_index_set(node.body, axis, extent, step, outer_guards)
        for s in reversed(segments) if node.runs_down else segments:
            emitter.known_guards = outer_guards | s.guards
            if len(segments) == 1:
                self._vector_groups(emitter, node, lo, hi, known)
            elif lo == "0":
                self._vector_groups(emitter, node, str(s.start), str(s.end), s.end - s.start)
            else:
                self._vector_groups_of_tile(emitter, node, lo, hi, s)
        emitter.known_guards = outer_guards
        emitter.interleave_groups = {}
        self.reductions.end_inner(emitter, outer)

    def _vector_groups_of_tile(
        self, emitter: FunctionEmitter, node: For, lo: str, hi: str, segment: Segment
    ) -> None:
        """Emit the groups of a tile from `lo` to `hi` that are in a segment of the whole axis."""
        f = emitter.f
        after = f.let(f"icmp sgt i64 {lo}, {segment.start}")
        start = f.let(f"select i1 {after}, i64 {lo}, i64 {segment.start}")
        before = f.let(f"icmp slt i64 {hi}, {segment.end}")
        end = f.let(f"select i1 {before}, i64 {hi}, i64 {segment.end}")
        with self.scope(emitter), f.if_then(f.let(f"icmp slt i64 {start}, {end}")):
            self._vector_groups(emitter, node, start, end, None)

    def _vector_groups(
        self, emitter: FunctionEmitter, node: For, lo: str, hi: str, known: int | None
    ) -> None:
        """Emit whole groups of vectors, and one masked group for the tail at the end of the axis.

        `known` is the number of iterations if it is static; code that cannot run is left out.
        """
        f, schedule = emitter.f, self.nest.schedule
        step = schedule.vector * schedule.unroll
        stores = stores_to_align(emitter, node, known)
        if stores:
            lo, known = self._peel(emitter, node, stores[0], lo, hi), None
        emitter.aligned_stores = stores
        whole_end = hi
        if known is None or known % step:
            span = f.let(f"sub i64 {hi}, {lo}")
            remaining = f.let(f"srem i64 {span}, {step}")
            whole_end = f.let(f"sub i64 {hi}, {remaining}")
        if node.runs_down:
            self._tail(emitter, node, whole_end, hi, known)
        if known is not None and known // step == 1:
            with self.scope(emitter):
                self._vector_body(emitter, node, lo)
        elif known is None or known >= step:
            blocks = self._sum_blocks(emitter, node, lo, whole_end)
            with blocks as (start, end), self.scope(emitter), f.loop(start, end, str(step)) as i:
                index = _index_of_step(f, node, i, lo, whole_end, step)
                self._vector_body(emitter, node, index)
        if not node.runs_down:
            self._tail(emitter, node, whole_end, hi, known)
        emitter.aligned_stores = ()

    def _tail(
        self, emitter: FunctionEmitter, node: For, whole_end: str, hi: str, known: int | None
    ) -> None:
        """Emit one masked group for the elements from `whole_end` to `hi`, if there are any.

        `known` is the number of all elements of the loop if it is static.
        """
        f, step = emitter.f, self.nest.schedule.vector * self.nest.schedule.unroll
        if known is not None and known % step == 0:
            return
        has_tail = f.let(f"icmp slt i64 {whole_end}, {hi}")
        with self.scope(emitter), f.if_then(has_tail):
            remaining = f.let(f"sub i64 {hi}, {whole_end}")
            known_tail = None if known is None else known % step
            emitter.masks = tail_masks(emitter, remaining, known_tail)
            self._vector_body(emitter, node, whole_end)

    def _peel(self, emitter: FunctionEmitter, node: For, store: Store, lo: str, hi: str) -> str:
        """Emit one masked group up to the first aligned vector of a store; return its index."""
        f = emitter.f
        with self.scope(emitter):
            emitter.indices[node.loop.axis] = lo
            before = peel_count(emitter, store, f.let(f"sub i64 {hi}, {lo}"))
            with f.if_then(f.let(f"icmp ne i64 {before}, 0")):
                emitter.masks = tail_masks(emitter, before, None)
                self._vector_body(emitter, node, lo)
        return f.let(f"add i64 {lo}, {before}")

    @contextmanager
    def _sum_blocks(
        self, emitter: FunctionEmitter, node: For, lo: str, hi: str
    ) -> Iterator[tuple[str, str]]:
        """Yield the bounds of each block of the loop if a sum has stages, else of the loop."""
        sums = [s.stmt for s in node.body if isinstance(s, StmtNode) and isinstance(s.stmt, Reduce)]
        in_registers, f, schedule = self.reductions.in_registers, emitter.f, self.nest.schedule
        own = {a.reduce.name for a in node.reductions} | self.reductions.inner
        accumulators = [in_registers[r.name] for r in sums if r.name in in_registers.keys() & own]
        accumulators = [acc for acc in accumulators if acc.stages]
        if not accumulators:
            yield lo, hi
            return
        size = FIRST_STAGE_TERMS * schedule.vector * schedule.unroll
        with f.loop(lo, hi, str(size)) as start:
            end = f.let(f"add i64 {start}, {size}")
            less = f.let(f"icmp slt i64 {end}, {hi}")
            yield start, f.let(f"select i1 {less}, i64 {end}, i64 {hi}")
            self.reductions.fold_after_block(emitter, accumulators, start, size)

    def _vector_body(self, emitter: FunctionEmitter, node: For, index: str) -> None:
        """Emit the body of a vector loop at one index."""
        emitter.vector_axis, emitter.indices[node.loop.axis] = node.loop.axis, index
        elements = emitter.lanes * emitter.unroll
        for s in node.prefetch:
            dtype = self.buffer_dtypes[s.buffer]
            prefetch(emitter, s.buffer, dtype, emitter.affine(s.index), elements)
        self.emit_nodes(emitter, node.body)
        emitter.vector_axis, emitter.masks = None, None

    @contextmanager
    def scope(self, emitter: FunctionEmitter) -> Iterator[None]:
        """Restore values and loop indices after the body, where they are undefined."""
        values, indices = dict(emitter.values), dict(emitter.indices)
        tile_starts, splats = dict(emitter.tile_starts), dict(emitter.splats)
        yield
        emitter.values, emitter.indices = values, indices
        emitter.tile_starts, emitter.splats = tile_starts, splats

    # -- statements ------------------------------------------------------------------------------

    def _emit_statement(self, emitter: FunctionEmitter, node: StmtNode) -> None:
        """Emit one statement, and spill its value if a later loop reloads it."""
        s = node.stmt
        match s:
            case Load():
                emit_load(emitter, s, self.buffer_dtypes[s.buffer])
            case Gather():
                emit_gather(emitter, s, self.buffer_dtypes[s.buffer])
            case Compute():
                emit_compute(emitter, s)
            case Iota():
                emit_iota(emitter, s)
            case InRange():
                emit_in_range(emitter, s)
            case Uniform():
                emit_uniform(emitter, s)
            case Reduce():
                self.reductions.update(emitter, s)
            case Scan():
                emit_scan(emitter, self.carries, s)
            case Previous():
                self.carries.previous(emitter, s)
            case Next():
                self.carries.next(emitter, s)
            case Store():
                emit_store(emitter, s, self.buffer_dtypes[s.buffer])
            case Scatter():
                emit_scatter(emitter, s, self.buffer_dtypes[s.buffer])
            case _:
                assert_never(s)
        if not isinstance(s, (*WRITES, Reduce)) and s.name in self.nest.spills:
            emit_spill(emitter, s.name)


def _index_of_step(f: FunctionBuilder, node: For, step: str, lo: str, hi: str, count: int) -> str:
    """Return the first index of a step of a loop, which takes `count` indices.

    Steps from `lo` to `hi` go through the axis from its end if the loop runs down.
    """
    if not node.runs_down:
        return step
    last = f.let(f"sub i64 {f.let(f'add i64 {lo}, {hi}')}, {count}")
    return f.let(f"sub i64 {last}, {step}")
