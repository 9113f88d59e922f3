"""Sums of pieces that lie beside each other in zeros: the gradients of slices of one tensor."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from tofuse.ir.dims import hint
from tofuse.ir.graph import Attr, Graph, Op, Operand, Scalar, Value
from tofuse.passes.rewrite import Rewrite, Rule, Sweep, rewrite

SPARSE = 2  # times as long as all pieces: zeros to be written are then most of a cat


def pad_add_to_concat(graph: Graph) -> Graph:
    """Join padded pieces that are added, and add those that lie at the same place first."""
    if sum(op.kind == "pad" for op in graph.ops) < 2:
        return graph
    inner = _inner(graph)

    def sum_of_pads(op: Op, sweep: Sweep) -> Rewrite | None:
        """pad(x, behind: m) + pad(y, before: n) = cat(x, y) where no element lies in both

        What lies between them is zeros. A zero that this leaves out may be a -0.0.
        """
        return None if op.result in inner else _Sum(op, sweep, inner).joined()

    rules: dict[str, tuple[Rule, ...]] = {"add": (sum_of_pads,)}
    return rewrite(graph, rules)


def _inner(graph: Graph) -> frozenset[Value]:
    """Sums that one other sum of the same type reads and nothing else, and those nothing reads."""
    users, returned = graph.users(), set(graph.outputs)
    sums = [op.result for op in graph.ops if op.kind == "add" and op.result not in returned]
    readers = {v: users.get(v, []) for v in sums}
    return frozenset(
        v
        for v, found in readers.items()
        if not found
        or (len(found) == 1 and found[0].kind == "add" and found[0].result.type == v.type)
    )


@dataclass(frozen=True)
class _Piece:
    """A value in zeros: from `start` up to `end` of one dimension."""

    start: int
    end: int
    value: Value
    pad: Value


class _Sum:
    """One sum of many terms, and the ops that take its place."""

    def __init__(self, op: Op, sweep: Sweep, inner: Collection[Value]) -> None:
        self.op, self.sweep = op, sweep
        self.ops: list[Op] = []
        self.terms: list[Value] = []
        work = list(reversed(op.inputs)) if len(op.inputs) == 2 else []
        while work:
            term = work.pop()
            added = sweep.define(term, "add") if term in inner else None
            if added is not None and len(added.inputs) == 2:
                work += reversed(added.inputs)
            else:
                self.terms.append(term)

    def joined(self) -> Rewrite | None:
        found = [self._pieces(d) for d in range(len(self.op.result.shape))]
        pieces = max(found, key=len, default=[])
        if len(pieces) < 2 or any(t.type != self.op.result.type for t in self.terms):
            return None
        d = found.index(pieces)
        pieces = _apart(pieces)
        places = {(p.start, p.end) for p in pieces}
        covered = sum(end - start for start, end in places)
        if len(pieces) < 2 or (
            len(places) > 1 and SPARSE * covered < hint(self.op.result.shape[d])
        ):
            return None
        gone = {p.pad for p in pieces}
        whole = self._join([self._total(p, pieces) for p in sorted(places)], d)
        for term in self.terms:
            if term not in gone:
                whole = self._make("add", (term, whole))
        return (*self.ops[:-1], replace(self.ops[-1], results=self.op.results))

    def _pieces(self, d: int) -> list[_Piece]:
        """The terms that are zero but for a part of dimension `d`."""
        found = []
        for term in self.terms:
            pad = self.sweep.define(term, "pad")
            if pad is None or not isinstance(pad.operands[1], Scalar) or pad.operands[1].value != 0:
                continue
            x, low, high = pad.inputs[0], pad.dims("low"), pad.dims("high")
            start, extent, behind = low[d], x.shape[d], hint(high[d])
            if any(low[k] != 0 or high[k] != 0 for k in range(len(low)) if k != d):
                continue
            if not isinstance(start, int) or not isinstance(extent, int):
                continue
            if start >= 0 and extent > 0 and behind >= 0:
                found.append(_Piece(start, start + extent, x, term))
        return found if len({p.pad for p in found}) == len(found) else []

    def _total(self, place: tuple[int, int], pieces: Sequence[_Piece]) -> _Piece:
        """All that lies at a place, added up."""
        first, *rest = [p for p in pieces if (p.start, p.end) == place]
        total = first.value
        for p in rest:
            total = self._make("add", (total, p.value))
        return replace(first, value=total)

    def _join(self, pieces: Sequence[_Piece], d: int) -> Value:
        """Pieces in order, zeros between them and around them."""
        shape = self.op.result.shape
        behind = shape[d] + -1 * pieces[-1].end
        if len(pieces) == 1 or not isinstance(behind, int):
            low = tuple(pieces[0].start if k == d else 0 for k in range(len(shape)))
            high = tuple(behind if k == d else 0 for k in range(len(shape)))
            moved = [replace(p, start=p.start - low[d], end=p.end - low[d]) for p in pieces]
            joined = self._cat(moved, d, moved[-1].end)
            return self._make("pad", (joined, Scalar(0.0)), low=low, high=high)
        return self._cat(pieces, d, pieces[-1].end + behind)

    def _cat(self, pieces: Sequence[_Piece], d: int, extent: int) -> Value:
        """Pieces along a dimension that is so long, and zeros where there are none."""
        parts: list[Value] = []
        end = 0
        for p in pieces:
            if p.start > end:
                parts.append(self._zeros(p.value, d, p.start - end))
            parts.append(p.value)
            end = p.end
        if end < extent:
            parts.append(self._zeros(pieces[-1].value, d, extent - end))
        return parts[0] if len(parts) == 1 else self._make("cat", tuple(parts), dim=d)

    def _zeros(self, like: Value, d: int, extent: int) -> Value:
        shape = tuple(extent if k == d else n for k, n in enumerate(like.shape))
        return self._make("full", (), value=0.0, shape=shape, dtype=like.dtype)

    def _make(self, kind: str, operands: tuple[Operand, ...], **attrs: Attr) -> Value:
        self.ops.append(self.sweep.make(kind, operands, like=self.op, **attrs))
        return self.ops[-1].result


def _apart(pieces: Sequence[_Piece]) -> list[_Piece]:
    """Those that lie at one place or at places without a common element, from the first on."""
    end, kept = 0, set[tuple[int, int]]()
    for place in sorted({(p.start, p.end) for p in pieces}):
        if place[0] >= end:
            kept.add(place)
            end = place[1]
    return [p for p in pieces if (p.start, p.end) in kept]
