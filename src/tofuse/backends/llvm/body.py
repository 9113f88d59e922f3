"""The loops of a phase and the statements in them, as LLVM IR."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from typing_extensions import assert_never

from tofuse.backends.llvm.index_set_split import MOST_STATEMENTS, between, segments
from tofuse.backends.llvm.peel import elements_before, to_align
from tofuse.backends.llvm.reduce import Cell, finish, fold_into, new_cell, update
from tofuse.backends.llvm.register_transpose import find_tile, is_whole, turned
from tofuse.backends.llvm.registers import Frame, Register, tail_masks
from tofuse.backends.llvm.scratch_accumulators import (
    added_up,
    clear_array,
    fold_into_array,
    fold_stages,
    update_array,
)
from tofuse.backends.llvm.staged_accumulators import Chains
from tofuse.backends.llvm.statements import (
    emit_ahead,
    emit_compute,
    emit_inside,
    emit_iota,
    emit_load,
    emit_store,
    emit_take,
    emit_uniform,
)
from tofuse.backends.llvm.unroll_rows import Rows, rows_at_once
from tofuse.ir.dims import Dim, known_multiple
from tofuse.ir.interleave import groups
from tofuse.ir.kernel import (
    Compute,
    Inside,
    Iota,
    Load,
    Reduce,
    Store,
    Take,
    Uniform,
    iteration_axes,
)
from tofuse.ir.nest import (
    Accumulate,
    Do,
    For,
    Nest,
    Node,
    Restore,
)
from tofuse.ir.schedule import Loop
from tofuse.ir.staged_sum import FIRST, is_cut
from tofuse.ir.types import DType


class Body:
    """Writes loop nests into frames; keeps track of the reductions that are under way."""

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        self.memory = {b.name: b.dtype for b in nest.kernel.buffers}
        _, self.runs = iteration_axes(nest.kernel)
        self.dtypes = {s.name: s.dtype for s in nest.kernel.body if not isinstance(s, Store)}
        self.chains = Chains(nest)
        self.cells, self.arrays = self.chains.cells, self.chains.arrays

    def trips(self, frame: Frame, loop: Loop) -> str:
        extent = self.nest.kernel.extent(loop.axis)
        if not loop.strip:
            return frame.size(extent)
        if isinstance(extent, int):
            return str(-(-extent // loop.strip))
        more = frame.f.let(f"add i64 {frame.size(extent)}, {loop.strip - 1}")
        return frame.f.let(f"sdiv i64 {more}, {loop.strip}")

    def set_axis(self, frame: Frame, loop: Loop, at: str) -> None:
        if loop.strip:
            frame.tiles[loop.axis] = frame.f.let(f"mul i64 {at}, {loop.strip}")
            frame.index[loop.axis] = frame.tiles[loop.axis]
        else:
            frame.index[loop.axis] = at

    # -- loops -----------------------------------------------------------------------------------

    def nodes(self, frame: Frame, nodes: Sequence[Node]) -> None:
        for node in nodes:
            match node:
                case Do():
                    self._do(frame, node)
                case Restore():
                    self._restore(frame, node)
                case For():
                    self._for(frame, node)
                case _:
                    assert_never(node)

    def pieces(self, frame: Frame, nodes: Sequence[Node], loops: Sequence[Loop]) -> None:
        """What is in loops: for each piece of a cat apart, where one loop tells which it is."""
        for axis in (lp.axis for lp in loops if not lp.strip and frame.tile is None):
            extent, known, at = self.nest.kernel.extent(axis), frame.known, frame.index[axis]
            found = segments(nodes, axis, extent, 1, known) if isinstance(extent, int) else []
            if 1 < len(found) <= MOST_STATEMENTS // len(self.nest.kernel.body):
                for s in found:
                    with self.scope(frame), frame.f.when(between(frame.f, at, s.start, s.end)):
                        frame.known = known | s.known
                        self.nodes(frame, nodes)
                frame.known = known
                return
        self.nodes(frame, nodes)

    def _for(self, frame: Frame, node: For) -> None:
        tile = None if frame.tile else find_tile(self.nest, node, self.memory)
        if tile is None or node.reductions:
            self._loop(frame, node)
            return
        whole = is_whole(frame, tile)
        with self.scope(frame), frame.f.when(whole), turned(frame, tile, self.memory):
            self._loop(frame, node)
        if whole != "true":
            with self.scope(frame), frame.f.when(frame.f.let(f"xor i1 {whole}, true")):
                self._loop(frame, node)

    def _loop(self, frame: Frame, node: For) -> None:
        begun = [(a, self.begin(frame, a)) for a in node.reductions]
        loop, loops = node.loop, self.nest.schedule.loops
        extent: Dim = self.nest.kernel.extent(loop.axis)
        lo, hi = "0", frame.size(extent)
        if not loop.strip and loop.axis in frame.tiles:
            lo = frame.tiles[loop.axis]
            strip = next(lp.strip for lp in loops if lp.axis == loop.axis and lp.strip)
            end = frame.f.let(f"add i64 {lo}, {strip}")
            whole = frame.tile is not None or (isinstance(extent, int) and extent % strip == 0)
            if not whole:
                less = frame.f.let(f"icmp slt i64 {end}, {hi}")
                end = frame.f.let(f"select i1 {less}, i64 {end}, i64 {hi}")
            hi, extent = end, strip if whole else 0
        innermost = loop is loops[-1]
        if loop.strip:
            with self.scope(frame), frame.f.loop("0", self.trips(frame, loop), "1") as at:
                self.set_axis(frame, loop, at)
                self.nodes(frame, node.body)
                self.chains.step(frame, [loop], node.body)
        elif innermost and self.nest.schedule.vector > 1:
            self._vector_loop(frame, node, lo, hi, extent if extent != 0 else None)
        else:
            self._plain_loop(frame, node, lo, hi)
        for a, cell in begun:
            if a.stages:
                fold_stages(frame, a)
            if cell is not None:
                result, _ = finish(frame, cell)
                frame.env[a.reduce.name] = Register((result,), a.reduce.dtype, 1)
            self.end(a)

    def _plain_loop(self, frame: Frame, node: For, lo: str, hi: str) -> None:
        f, loop = frame.f, node.loop
        rows = rows_at_once(self.nest, node) if lo == "0" and frame.tile is None else None
        if rows is not None:
            left = f.let(f"srem i64 {hi}, {rows.count}")
            end = f.let(f"sub i64 {hi}, {left}")
            with self.scope(frame), f.loop(lo, end, str(rows.count)) as at:
                frame.index[loop.axis], frame.rows = at, rows
                self.nodes(frame, node.body)
                frame.index[loop.axis] = f.let(f"add i64 {at}, {rows.count - 1}")
                self.chains.step(frame, [loop], node.body, rows.count)
            frame.rows, lo = None, end
            if known_multiple(self.nest.kernel.extent(loop.axis), rows.count):
                return
        with self.scope(frame), f.loop(lo, hi, "1") as at:
            frame.index[loop.axis] = at
            self.pieces(frame, node.body, [loop])
            if rows is None:
                self.chains.step(frame, [loop], node.body)

    def _together(self, frame: Frame, node: For, rows: Rows) -> None:
        """One vector of several rows: what they add up to goes into the arrays."""
        first, taken = frame.index[rows.axis], [n.stmt for n in node.body if isinstance(n, Do)]
        sums = [s for s in taken if isinstance(s, Reduce)]
        parts: dict[Reduce, list[tuple[str, ...]]] = {r: [] for r in sums}
        for k in range(rows.count):
            with self.scope(frame):
                frame.index[rows.axis] = frame.f.let(f"add i64 {first}, {k}")
                self.nodes(frame, [n for n in node.body if not _is_reduce(n)])
                for r in sums:
                    parts[r].append(frame.get(r.arg, r.dtype))
        for r in sums:
            update_array(frame, self.arrays[r.name], added_up(frame, r, parts[r]))

    def _vector_loop(self, frame: Frame, node: For, lo: str, hi: str, extent: Dim | None) -> None:
        """Run in vectors, in segments where guards are known."""
        inner = self._inner_cells(frame, node)
        stmts = [n.stmt for n in node.body if isinstance(n, Do)]
        frame.groups = {} if frame.tile else groups(stmts, node.loop.axis)
        if isinstance(extent, int) and lo == "0" and extent:
            step = self.nest.schedule.vector * self.nest.schedule.unroll
            known = frame.known
            for s in segments(node.body, node.loop.axis, extent, step, known):
                frame.known = known | s.known
                self._groups(frame, node, str(s.start), str(s.end), s.end - s.start)
            frame.known = known
        else:
            self._groups(frame, node, lo, hi, extent)
        frame.groups = {}
        for name, outer in inner:
            cell = self.cells.pop(name)
            if isinstance(outer, Cell):
                fold_into(frame, cell, outer)
                self.cells[name] = outer
            else:
                fold_into_array(frame, cell, outer)

    def _groups(self, frame: Frame, node: For, lo: str, hi: str, extent: Dim | None) -> None:
        """Whole groups of vectors first, then one masked group for what is left.

        `extent` is the number of iterations where it is known, to leave out what never runs.
        """
        f, schedule = frame.f, self.nest.schedule
        step = schedule.vector * schedule.unroll
        stores = to_align(frame, node, extent)
        if stores:
            lo, extent = self._begin(frame, node, stores[0], lo, hi), None
        frame.aligned = stores
        known = extent if isinstance(extent, int) else None
        whole_end = hi
        if known is None or known % step:
            span = f.let(f"sub i64 {hi}, {lo}")
            left = f.let(f"srem i64 {span}, {step}")
            whole_end = f.let(f"sub i64 {hi}, {left}")
        if known is None or known >= step:
            blocks = self._blocks(frame, node, lo, whole_end)
            with blocks as (start, end), self.scope(frame), f.loop(start, end, str(step)) as at:
                self._vector_body(frame, node, at)
        if known is None or known % step:
            rest = f.let(f"icmp slt i64 {whole_end}, {hi}")
            with self.scope(frame), f.when(rest):
                left = f.let(f"sub i64 {hi}, {whole_end}")
                frame.masks = tail_masks(frame, left, None if known is None else known % step)
                self._vector_body(frame, node, whole_end)

        frame.aligned = ()

    def _begin(self, frame: Frame, node: For, store: Store, lo: str, hi: str) -> str:
        """One masked group up to where a store begins a vector; returns where that is."""
        f = frame.f
        with self.scope(frame):
            frame.index[node.loop.axis] = lo
            before = elements_before(frame, store, f.let(f"sub i64 {hi}, {lo}"))
            with f.when(f.let(f"icmp ne i64 {before}, 0")):
                frame.masks = tail_masks(frame, before, None)
                self._vector_body(frame, node, lo)
        return f.let(f"add i64 {lo}, {before}")

    @contextmanager
    def _blocks(self, frame: Frame, node: For, lo: str, hi: str) -> Iterator[tuple[str, str]]:
        """The bounds of one block after the other, where a sum takes more than one."""
        sums = [s.stmt for s in node.body if isinstance(s, Do) and isinstance(s.stmt, Reduce)]
        cells = [self.cells[r.name] for r in sums if r.name in self.cells]
        cells = [c for c in cells if c.stages]
        if not cells:
            yield lo, hi
            return
        size, f = FIRST * self.nest.schedule.vector * self.nest.schedule.unroll, frame.f
        with f.loop(lo, hi, str(size)) as start:
            end = f.let(f"add i64 {start}, {size}")
            less = f.let(f"icmp slt i64 {end}, {hi}")
            yield start, f.let(f"select i1 {less}, i64 {end}, i64 {hi}")
            self.chains.block_done(frame, cells, start, size)

    def _vector_body(self, frame: Frame, node: For, at: str) -> None:
        frame.vector, frame.index[node.loop.axis] = node.loop.axis, at
        emit_ahead(frame, node.ahead, self.memory, self.nest.schedule)
        if frame.rows is not None:
            self._together(frame, node, frame.rows)
        else:
            self.nodes(frame, node.body)
        frame.vector, frame.masks = None, None

    def _inner_cells(self, frame: Frame, node: For) -> list[tuple[str, Cell | Accumulate]]:
        """Fresh vector accumulators for reductions that began outside this loop.

        Sums in registers get them so that errors stay small; arrays that do not keep the vector
        axis, so that lanes are folded once and not at every step.
        """
        fresh: list[tuple[str, Cell | Accumulate]] = []
        own = {a.reduce for a in node.reductions}
        for stmt in (n.stmt for n in node.body if isinstance(n, Do)):
            if not isinstance(stmt, Reduce) or stmt in own:
                continue
            array, outer = self.arrays.get(stmt.name), self.cells.get(stmt.name)
            stages = self.chains.stages(stmt, in_vectors=True)
            if array is not None and node.loop.axis in stmt.over:
                dtype = self._accumulator_dtype(stmt)
                schedule = self.nest.schedule
                cell = new_cell(frame, stmt, dtype, schedule.vector, schedule.unroll, stages)
                fresh.append((stmt.name, array))
            elif outer is not None and is_cut(stmt):
                unroll = len(outer.slots)
                cell = new_cell(frame, stmt, outer.dtype, outer.lanes, unroll, stages)
                fresh.append((stmt.name, outer))
            else:
                continue
            self.cells[stmt.name] = cell
        return fresh

    def _accumulator_dtype(self, r: Reduce) -> DType:
        return self.dtypes[r.arg] if r.position is not None else r.dtype

    @contextmanager
    def scope(self, frame: Frame) -> Iterator[None]:
        """Values and loop variables of a loop body are unknown outside it."""
        env, index, tiles = dict(frame.env), dict(frame.index), dict(frame.tiles)
        splats = dict(frame.splats)
        yield
        frame.env, frame.index, frame.tiles, frame.splats = env, index, tiles, splats

    # -- statements ------------------------------------------------------------------------------

    def begin(self, frame: Frame, a: Accumulate) -> Cell | None:
        """Start a reduction; the cell where it lives in registers, None where in an array."""
        r = a.reduce
        dtype = self._accumulator_dtype(r)
        in_vectors = self.nest.schedule.vector > 1 and self._runs_in_vectors(r)
        if a.array is not None and a.array.index.terms:
            clear_array(frame, a)
            self.arrays[r.name] = a
            return None
        lanes = self.nest.schedule.vector if in_vectors else 1
        unroll = self.nest.schedule.unroll if in_vectors else 1
        alone = in_vectors and not self.chains.loops(r)  # within a single loop
        stages = self.chains.stages(r, in_vectors=alone)
        self.cells[r.name] = new_cell(frame, r, dtype, lanes, unroll, stages)
        return self.cells[r.name]

    def _runs_in_vectors(self, r: Reduce) -> bool:
        return self.nest.schedule.loops[-1].axis in self.runs[r]

    def end(self, a: Accumulate) -> None:
        self.cells.pop(a.reduce.name, None)
        self.arrays.pop(a.reduce.name, None)

    def _do(self, frame: Frame, node: Do) -> None:
        s = node.stmt
        match s:
            case Load():
                emit_load(frame, s, self.memory[s.buffer])
            case Take():
                emit_take(frame, s, self.memory[s.buffer])
            case Compute():
                emit_compute(frame, s)
            case Iota():
                emit_iota(frame, s)
            case Inside():
                emit_inside(frame, s)
            case Uniform():
                emit_uniform(frame, s)
            case Reduce():
                if s.name in self.cells:
                    update(frame, self.cells[s.name])
                else:
                    a = self.arrays[s.name]
                    update_array(frame, a, frame.get(s.arg, self._accumulator_dtype(s)))
                return
            case Store():
                emit_store(frame, s, self.memory[s.buffer])
                return
            case _:
                assert_never(s)
        if s.name in self.nest.saved:
            self._save(frame, s.name)

    def _save(self, frame: Frame, name: str) -> None:
        scratch, parts = self.nest.saved[name], frame.env[name]
        if scratch.index.axes and frame.vector is None and parts.lanes != frame.lanes:
            return
        for u in range(frame.unroll):
            slot = frame.scratch_element(scratch, u)
            frame.store(slot, scratch.dtype, parts.names[u], frame.lanes, frame.mask(u))

    def _restore(self, frame: Frame, node: Restore) -> None:
        scratch = node.scratch
        if frame.vector is not None and frame.vector not in scratch.index.axes:
            slot = frame.scratch_element(scratch, 0)
            frame.env[node.name] = Register(
                (frame.load(slot, scratch.dtype, 1, None),), scratch.dtype, 1
            )
            return
        parts = [
            frame.load(frame.scratch_element(scratch, u), scratch.dtype, frame.lanes, frame.mask(u))
            for u in range(frame.unroll)
        ]
        frame.put(node.name, parts, scratch.dtype)


def _is_reduce(node: Node) -> bool:
    return isinstance(node, Do) and isinstance(node.stmt, Reduce)
