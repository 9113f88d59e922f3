"""The ops that must be computed with a product's rows, for chunks of rows to suffice."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tofuse.analysis.alias import is_view
from tofuse.analysis.reachability import reachable
from tofuse.cost.thresholds import WIDE_SHARE
from tofuse.ir.graph import Graph, Op, Value
from tofuse.passes.chunk.row_maps import Rows, RowsMixed, operand_rows, result_rows


@dataclass(frozen=True, eq=False)
class RowGroup:
    """Ops that can be computed chunk by chunk, of `rows` rows in multiples of `unit`.

    `values` are their results that have the rows, and where; `sums` are results that are sums over
    rows. `sliced` are operands from outside that have the rows. `outputs` are the results that are
    used outside, with their ops. `ancestors` are the ops whose results the group reads, and those
    before them. `copied` are ops inside that do not depend on the product: they stay outside, too.
    """

    product: Op
    rows: int
    unit: int
    inside: frozenset[Op]
    values: Mapping[Value, Rows]
    sums: frozenset[Value]
    sliced: Mapping[Value, Rows]
    outputs: Mapping[Value, Op]
    ancestors: frozenset[Op]
    copied: frozenset[Op]


def find_row_group(graph: Graph, product: Op) -> RowGroup | None:
    """Return the ops that have as many elements as a product, and those between them.

    None if some of them mix rows, or if one of these values is used elsewhere.
    """
    try:
        return _Search(graph, product).run()
    except RowsMixed:
        return None


class _Search:
    def __init__(self, graph: Graph, product: Op) -> None:
        self.graph, self.product = graph, product
        self.users, self.producers = graph.users(), graph.producers()
        self.inside: set[Op] = set()
        self.values: dict[Value, Rows] = {}
        self.sums: set[Value] = set()
        self.sliced: dict[Value, Rows] = {}
        self.whole: set[Value] = set()  # operands without rows
        numel = product.result.type.numel
        assert isinstance(numel, int)
        self.wide_numel = numel // WIDE_SHARE
        self.dependent = set(
            reachable([product], lambda op: [u for r in op.results for u in self.users.get(r, ())])
        )

    def run(self) -> RowGroup:
        self._add(self.product, Rows(0, 1))
        pending = [self.product.result]
        for v in pending:  # grows while it is walked
            for op in self.users.get(v, ()):
                if op not in self.inside:
                    self._add(op, self._rows_from(op, v))
            pending += [x for x in self.values if self._is_wide_part(x) and x not in pending]
        self._extend()
        outputs = self._outputs()
        self._check_whole_operands()
        read = [p for x in (*self.sliced, *self.whole) if (p := self.producers.get(x)) is not None]
        ancestors = reachable(
            read, lambda op: [p for x in op.inputs if (p := self.producers.get(x)) is not None]
        )
        units = [r.unit for r in (*self.values.values(), *self.sliced.values())]
        rows = self.product.result.shape[0]
        assert isinstance(rows, int)
        return RowGroup(
            self.product,
            rows,
            math.lcm(*units),
            frozenset(self.inside),
            self.values,
            frozenset(self.sums),
            self.sliced,
            outputs,
            frozenset(ancestors),
            frozenset(self.inside - self.dependent),
        )

    def _extend(self) -> None:
        """Add later ops that work row by row, so that they fuse with the ops of the group."""
        for op in self.graph.ops:
            computed = [x for x in op.inputs if self.producers.get(x) in self.dependent]
            if op in self.inside or op.kind == "opaque" or not computed:
                continue
            if any(x not in self.values for x in computed):
                continue
            before = {*self.inside}, {**self.values}, {*self.sums}, {**self.sliced}, {*self.whole}
            try:
                self._add(op, self._rows_from(op, computed[0]))
            except RowsMixed:
                self.inside, self.values, self.sums, self.sliced, self.whole = before

    def _rows_from(self, op: Op, v: Value) -> Rows | None:
        """Return where an op's result has the rows of its operand `v`."""
        found = {result_rows(op, k, self.values[v]) for k, x in enumerate(op.inputs) if x is v}
        if len(found) != 1:
            raise RowsMixed
        return found.pop()

    def _add(self, op: Op, rows: Rows | None) -> None:
        """Add an op whose result has the rows there, or is a sum over them; and what it needs."""
        if len(op.results) != 1 or op.kind == "iota":
            raise RowsMixed
        if not is_view(op) and not op.result.is_row_major:
            raise RowsMixed
        self.inside.add(op)
        if rows is None:
            self.sums.add(op.result)
            if op.kind == "sum":
                return  # its only operand has the rows
        else:
            self.values[op.result] = rows
        for k, x in enumerate(op.inputs):
            self._need(x, operand_rows(op, k, rows))

    def _need(self, x: Value, rows: Rows | None) -> None:
        """Note where an operand has the rows; add the op that computes it, if it must be."""
        known = self.values.get(x) or self.sliced.get(x)
        if known is not None and rows != known:
            raise RowsMixed
        if known is not None:
            return
        if rows is None:
            self.whole.add(x)
            return
        producer = self.producers.get(x)
        if producer is not None and self._is_computed_inside(producer):
            self._add(producer, rows)
        else:
            self.sliced[x] = rows

    def _is_computed_inside(self, op: Op) -> bool:
        """Whether an operand's op must be in the group: else it would need all rows in memory."""
        wide = any(map(self._is_wide, (*op.results, *op.inputs)))
        return (wide and op.kind != "opaque") or op in self.dependent

    def _check_whole_operands(self) -> None:
        """Raise RowsMixed if an operand without rows has rows elsewhere, or needs the product."""
        for x in self.whole:
            producer = self.producers.get(x)
            has_rows = x in self.sliced or x in self.values
            if has_rows or (producer is not None and producer in self.dependent):
                raise RowsMixed

    def _outputs(self) -> dict[Value, Op]:
        """Return the results that are used outside; raise RowsMixed if one is wide."""
        returned = {v for v in self.graph.outputs if v is not None}
        found = {}
        for op in self.graph.ops:
            if op not in self.inside or op not in self.dependent:
                continue  # what does not depend on the product is computed again outside
            v = op.result
            if v in returned or any(u not in self.inside for u in self.users.get(v, ())):
                if v in self.values and self._is_wide(v):
                    raise RowsMixed
                found[v] = op
        return found

    def _is_wide_part(self, v: Value) -> bool:
        """Whether a value of the group is wide and depends on the product."""
        return self._is_wide(v) and self.producers[v] in self.dependent

    def _is_wide(self, v: Value) -> bool:
        numel = v.type.numel
        return not isinstance(numel, int) or numel >= self.wide_numel
