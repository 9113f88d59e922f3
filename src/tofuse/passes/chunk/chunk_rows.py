"""Compute large products chunk by chunk, with all that reads them."""

from __future__ import annotations

import itertools
from dataclasses import replace

from tofuse.analysis.alias import has_effect
from tofuse.cost.chunks import DEFAULT_CHUNK_LIMITS, ChunkLimits, ProductShape
from tofuse.cost.thresholds import MAX_CHUNKS, MIN_CHUNKS
from tofuse.ir.call_arguments import CallArguments, OperandRef
from tofuse.ir.graph import Attr, Graph, Names, Op, Operand, Value
from tofuse.ir.types import DType
from tofuse.ops.result_types import make_op, slice_attrs
from tofuse.passes.chunk.row_maps import is_product
from tofuse.passes.chunk.rows_of_product import RowGroup, find_row_group


def chunk_rows(graph: Graph, limits: ChunkLimits = DEFAULT_CHUNK_LIMITS) -> Graph:
    """Return the graph with each large product computed in chunks of rows.

    All ops that have as many elements are computed chunk by chunk with it, so that only one chunk
    of them is in memory at a time: results of a row are joined, sums over rows are added up. A
    product whose result leaves the graph, or is mixed across rows, stays whole.
    """
    for op in graph.ops:
        shape = _product_shape(op) if is_product(op) else None
        if shape is None or not limits.chunk_count(shape, with_gradients=False):
            continue
        group = find_row_group(graph, op) if op in graph.ops else None
        if group is None:
            continue
        with_gradients = any(is_product(u) for u in group.inside if u.result in group.sums)
        count = min(limits.chunk_count(shape, with_gradients), group.rows // group.unit)
        if count >= MIN_CHUNKS:
            graph = _Chunker(graph, group).run(_chunk_bounds(group, count))
    return graph


def _product_shape(product: Op) -> ProductShape | None:
    *_, a, b = product.inputs
    sizes = [n for n in (*a.shape, b.shape[1]) if isinstance(n, int)]
    if len(sizes) < 3:
        return None
    rows, inner, columns = sizes
    return ProductShape(rows, inner, columns, product.result.dtype.itemsize)


def _chunk_bounds(group: RowGroup, count: int) -> list[int]:
    """Return the first row of each chunk, and the number of rows; equal chunks if possible."""
    blocks = group.rows // group.unit
    most = min(2 * count, MAX_CHUNKS, blocks)
    equal = [n for n in range(count, most + 1) if blocks % n == 0]
    size = -(-blocks // (equal[0] if equal else count)) * group.unit
    return [*range(0, group.rows, size), group.rows]


class _Chunker:
    """Writes the ops of a row group once for each chunk."""

    def __init__(self, graph: Graph, group: RowGroup) -> None:
        self.graph, self.group, self.names = graph, group, Names(graph)
        self.ops: list[Op] = []
        self.is_first = True
        self.results: dict[Value, list[Value]] = {v: [] for v in group.outputs}

    def run(self, bounds: list[int]) -> Graph:
        """Return the new graph; the old one if ops with side effects would change their order."""
        ops, inside = self.graph.ops, self.group.inside
        first = next(k for k, op in enumerate(ops) if op in inside)
        early = {op for k, op in enumerate(ops) if k < first or op in self.group.ancestors}
        early -= inside - self.group.copied
        for begin, end in itertools.pairwise(bounds):
            self._write_chunk(begin, end)
            self.is_first = False
        for v in self.group.outputs:
            self._join(v)
        before = [op for op in ops if op in early]
        late = inside - self.group.copied
        after = [op for op in ops if op not in early and op not in late]
        keeps_effects = [*filter(has_effect, ops)] == [*filter(has_effect, (*before, *after))]
        return (
            replace(self.graph, ops=(*before, *self.ops, *after)) if keeps_effects else self.graph
        )

    def _write_chunk(self, begin: int, end: int) -> None:
        """Append the ops of a chunk; they wait for all results of the chunk before."""
        made: dict[Value, Value] = {}
        previous = tuple(parts[-1] for parts in self.results.values() if parts)
        for op in (op for op in self.graph.ops if op in self.group.inside):
            operands = tuple(self._operand(op, v, made, begin, end) for v in op.operands)
            attrs = dict(op.attrs)
            if op is self.group.product and previous:
                after = tuple(OperandRef(len(operands) + k) for k in range(len(previous)))
                attrs["args"] = replace(op.arguments, after=after)
                operands += previous
            made[op.result] = self._write(op, operands, attrs, begin, end)
        for v, parts in self.results.items():
            parts.append(made[v])

    def _operand(
        self, op: Op, v: Operand, made: dict[Value, Value], begin: int, end: int
    ) -> Operand:
        """Return the rows of an operand, if it has them."""
        if not isinstance(v, Value):
            return v
        rows = self.group.sliced.get(v)
        if v in made or rows is None:
            return made.get(v, v)
        extent = (end - begin) // rows.unit
        attrs = slice_attrs(v, rows.dim, begin // rows.unit, extent)
        made[v] = self._append("slice", (v,), attrs, op)
        return made[v]

    def _write(
        self,
        op: Op,
        operands: tuple[Operand, ...],
        attrs: dict[str, Attr],
        begin: int,
        end: int,
    ) -> Value:
        """Append the op for a chunk; of a sum over rows, the sum so far."""
        v = op.result
        if v not in self.group.sums:
            if "shape" in attrs:
                rows = self.group.values[v]
                extent = (end - begin) // rows.unit
                attrs["shape"] = (*v.shape[: rows.dim], extent, *v.shape[rows.dim + 1 :])
            return self._append(op.kind, operands, attrs, op)
        previous = self.results.get(v, [])[-1:]
        wide = v.dtype.opmath
        if op.kind == "sum":
            part = self._append("sum", operands, attrs | {"dtype": wide}, op)
        elif previous and wide is v.dtype:
            arguments = CallArguments(tuple(map(OperandRef, range(3))))
            attrs |= {"target": "aten.addmm.default", "args": arguments}
            return self._append("opaque", (*previous, *operands), attrs, op)
        else:
            part = self._convert(self._append("opaque", operands, attrs, op), wide, op)
        return self._append("add", (*previous, part), {}, op) if previous else part

    def _join(self, v: Value) -> None:
        """Append the op that makes a result of the group from those of the chunks."""
        op, parts = self.group.outputs[v], self.results[v]
        if v in self.group.sums:
            last = parts[-1]
            if last.dtype is v.dtype:
                self._rename(last, v)
            else:
                self.ops.append(op.redefined("convert", last, dtype=v.dtype))
            return
        self.ops.append(op.redefined("cat", *parts, dim=self.group.values[v].dim))

    def _rename(self, last: Value, v: Value) -> None:
        """Let the op that computes the last sum compute `v`."""
        (k,) = (k for k, op in enumerate(self.ops) if last in op.results)
        self.ops[k] = replace(self.ops[k], results=(v,))

    def _convert(self, v: Value, dtype: DType, op: Op) -> Value:
        return v if v.dtype is dtype else self._append("convert", (v,), {"dtype": dtype}, op)

    def _append(
        self, kind: str, operands: tuple[Operand, ...], attrs: dict[str, Attr], like: Op
    ) -> Value:
        op = make_op(kind, operands, attrs, name=self.names.fresh(like.result.name), like=like)
        if op.loc is not None and not (self.is_first and kind == like.kind):
            op = replace(op, loc=replace(op.loc, call_count=0))
        self.ops.append(op)
        return op.result
