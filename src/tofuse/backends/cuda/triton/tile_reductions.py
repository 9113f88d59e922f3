"""Triton text of the reductions of a launch: operands, accumulators, and their folding."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from tofuse.backends.cuda.triton.elementwise import TRITON_TYPES
from tofuse.backends.cuda.triton.merge_sums import MergedReductions
from tofuse.backends.cuda.triton.reduce import combine_expression, identity, reduce_line
from tofuse.backends.cuda.triton.sides import ContractionSides
from tofuse.backends.cuda.triton.statements import StatementEmitter
from tofuse.ir.kernel import Reduce, Stmt
from tofuse.ir.tile import TileNest
from tofuse.ir.types import DType
from tofuse.ops.table import NO_POSITION

Parts = Sequence[StatementEmitter]


class ReductionEmitter:
    """Emits reductions for each part of a row; there is one part unless rows are divided."""

    def __init__(self, nest: TileNest, parts: Parts, line: Callable[[str], None]) -> None:
        self.nest, self.parts, self.line = nest, parts, line
        self.sides = ContractionSides(nest, parts) if nest.contractions else None
        self.contraction_of = {} if self.sides is None else self.sides.contraction_of
        alignment = nest.alignment
        self.row_axes = frozenset(alignment.tile.axes) if alignment is not None else frozenset()

    def parts_of(self, stmt: Stmt, among: Parts) -> Parts:
        """Return the parts for which a statement is emitted: the first, if it has no row's axes."""
        if self.sides is not None:
            return self.sides.emitters_of(stmt)
        if self.parts[0].statement_axes[stmt].isdisjoint(self.row_axes):
            return self.parts[:1]
        return among

    def set_name(self, value: str, name: str, parts: Parts) -> None:
        """Set the variable that holds a value; all parts know that of a value without row axes."""
        is_shared = self.parts[0].value_axes[value].isdisjoint(self.row_axes)
        if self.sides is not None:
            is_shared = not self.sides.has_depth(value)
        for part in self.parts if is_shared else parts:
            part.names[value] = name

    def sum_key(self, r: Reduce) -> Hashable | None:
        """Return what sums must share to be one reduction, or None for other reductions."""
        if r.op != "sum" or not r.dtype.is_float or r in self.contraction_of:
            return None
        first = self.parts_of(r, self.parts)[0]
        shape = first.index_space.shape(first.value_axes[r.arg] | frozenset(r.over))
        return self.parts.index(first), frozenset(r.over), shape, r.dtype

    def reduce(self, reductions: MergedReductions, suffix: str, among: Parts) -> None:
        """Reduce values that are not computed in a loop."""
        for part in self.parts_of(reductions[0], among):
            for r in reductions:
                self.set_operand(r, r.name + suffix, part)
        self.fold(reductions, suffix, among)

    def set_operand(self, r: Reduce, name: str, part: StatementEmitter) -> None:
        """Set the variables that are reduced to the operand of a part."""
        arg, position = self._operand(r, part)
        name += part.suffix
        if position is None:
            self.line(f"{name} = {arg}")
        else:
            self.line(f"{name} = {position}")
            self.line(f"{name}_best = {arg}")

    def init_accumulator(self, r: Reduce, part: StatementEmitter) -> None:
        """Set the accumulator of a reduction to the identity."""
        axes = part.value_axes[r.name] if r in self.contraction_of else part.statement_axes[r]
        shape = part.index_space.shape(axes)
        start = identity(r.op, self.operand_dtype(r))
        first = f"tl.full({shape}, {start}, {self._register_type(r)})"
        name = r.name + part.suffix
        if r.position is None:
            self.line(f"{name} = {first}")
        else:
            self.line(f"{name} = tl.full({shape}, {NO_POSITION}, tl.int64)")
            self.line(f"{name}_best = {first}")

    def accumulate(self, r: Reduce, part: StatementEmitter) -> None:
        """Combine the current block into the accumulator of a reduction."""
        if self.sides is not None and r in self.contraction_of:
            self.line(f"{r.name} = {self.sides.dot(self.contraction_of[r])}")
            return
        arg, position = self._operand(r, part)
        name = r.name + part.suffix
        if position is None:
            total = combine_expression(r.op, name, arg, self.operand_dtype(r))
            self.line(f"{name} = {total}.to({self._register_type(r)})")
        else:
            self.line(f"{name}_best, {name} = _{r.op}({name}_best, {name}, {arg}, {position})")

    def fold(self, reductions: MergedReductions, suffix: str, among: Parts) -> None:
        """Reduce tiles in registers to the results; a matrix product is one already."""
        first = reductions[0]
        parts, dtype = self.parts_of(first, among), self.operand_dtype(first)
        if first in self.contraction_of:
            self.set_name(first.name, first.name + suffix, parts)
            return
        for part in parts:
            names = [r.name + suffix + part.suffix for r in reductions]
            for dimension, t in enumerate(part.index_space.tiles):
                if not set(t.axes).isdisjoint(first.over):
                    self.line(reduce_line(first, names, dimension, dtype))
        for r in reductions:
            self._finish_fold(r, r.name + suffix, parts)

    def operand_dtype(self, r: Reduce) -> DType:
        """Return the dtype of the elements that a reduction compares or adds."""
        return self.parts[0].value_dtypes[r.arg] if r.position is not None else r.dtype

    def _finish_fold(self, r: Reduce, name: str, parts: Parts) -> None:
        """Combine reduced parts, and convert them to the dtype of the result."""
        if not self.row_axes.isdisjoint(r.over):
            for part in parts[1:]:
                self._combine(r, name, name + part.suffix)
            parts = parts[:1]
        for part in parts:
            result = name + part.suffix
            self.set_name(r.name, result, [part])
            if r.position is None and r.dtype is DType.BOOL:
                self.line(f"{result} = {result} != 0")
            elif r.position is None:
                self.line(f"{result} = {result}.to({TRITON_TYPES[r.dtype]})")

    def _combine(self, r: Reduce, name: str, other: str) -> None:
        """Combine the result of one part of a row into that of another."""
        if r.position is None:
            total = combine_expression(r.op, name, other, self.operand_dtype(r))
            self.line(f"{name} = {total}.to({self._register_type(r)})")
            return
        best = f"{name}_best, {name}"
        self.line(f"{best} = _{r.op}({best}, {other}_best, {other})")

    def _operand(self, r: Reduce, part: StatementEmitter) -> tuple[str, str | None]:
        """Return the argument over its whole tile, identities outside extents, and positions."""
        space, dtype = part.index_space, self.operand_dtype(r)
        shape = space.shape(part.value_axes[r.arg] | frozenset(r.over))
        arg = part.names[r.arg]
        if dtype is DType.BOOL:
            arg = f"{arg}.to(tl.int32)"
        masks = space.masks(r.over)
        if masks:
            arg = f"tl.where({' & '.join(masks)}, {arg}, {identity(r.op, dtype)})"
        arg = space.broadcast(arg, shape)
        if r.position is None:
            return arg, None
        position = f"({space.affine(r.position)}).to(tl.int64)"
        if masks:
            position = f"tl.where({' & '.join(masks)}, {position}, {NO_POSITION})"
        return arg, space.broadcast(position, shape)

    def _register_type(self, r: Reduce) -> str:
        dtype = self.operand_dtype(r)
        return "tl.int32" if dtype is DType.BOOL else TRITON_TYPES[dtype]
