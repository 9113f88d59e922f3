"""Rewrite sums of zero-padded values, such as the gradients of slices, to concats."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from tofuse.cost.thresholds import MAX_CONCAT_TO_PIECES_LENGTH_RATIO
from tofuse.ir.dims import size_hint
from tofuse.ir.graph import Graph, Op, Scalar, Value
from tofuse.passes.rewrite import OpBuilder, Replacement, Rewriter, RewriteRule, rewrite


def pad_add_to_concat(graph: Graph) -> Graph:
    """Replace sums of padded values by a concat; values with the same range are added first."""
    if sum(op.kind == "pad" for op in graph.ops) < 2:
        return graph
    nested = _nested_sums(graph)

    def sum_of_pads(op: Op, rewriter: Rewriter) -> Replacement | None:
        """pad(x, high=m) + pad(y, low=n) = cat(x, y), if the ranges of x and y are disjoint

        Zeros fill the gap between the ranges. Not exact for -0.0: -0.0 + 0.0 is 0.0.
        """
        return None if op.result in nested else _PadSum(op, rewriter, nested).as_concat()

    rules: dict[str, tuple[RewriteRule, ...]] = {"add": (sum_of_pads,)}
    return rewrite(graph, rules)


def _nested_sums(graph: Graph) -> frozenset[Value]:
    """Return the sums whose only user is another sum of the same type, and the unused sums."""
    users, returned = graph.users(), set(graph.outputs)
    sums = [op.result for op in graph.ops if op.kind == "add" and op.result not in returned]
    return frozenset(v for v in sums if _has_only_sum_user(v, users.get(v, [])))


def _has_only_sum_user(v: Value, users: Sequence[Op]) -> bool:
    if not users:
        return True
    return len(users) == 1 and users[0].kind == "add" and users[0].result.type == v.type


@dataclass(frozen=True)
class _PaddedValue:
    """A zero-padded value: it fills `start` up to `end` of one dimension; `pad` is the result."""

    start: int
    end: int
    value: Value
    pad: Value


class _PadSum(OpBuilder):
    """One sum of many terms, and the ops that replace it."""

    def __init__(self, op: Op, rewriter: Rewriter, nested: Collection[Value]) -> None:
        super().__init__(op, rewriter)
        self.terms: list[Value] = []
        work = list(reversed(op.inputs)) if len(op.inputs) == 2 else []
        while work:
            term = work.pop()
            added = rewriter.defining_op(term, "add") if term in nested else None
            if added is not None and len(added.inputs) == 2:
                work += reversed(added.inputs)
            else:
                self.terms.append(term)

    def as_concat(self) -> Replacement | None:
        """Return the ops that replace the sum; None if a concat is impossible or mostly zeros."""
        found = [self._padded_values(dim) for dim in range(len(self.op.result.shape))]
        padded = max(found, key=len, default=[])
        if len(padded) < 2 or any(t.type != self.op.result.type for t in self.terms):
            return None
        dim = found.index(padded)
        padded = _without_overlaps(padded)
        ranges = {(p.start, p.end) for p in padded}
        length = sum(end - start for start, end in ranges)
        if len(padded) < 2:
            return None
        if len(ranges) > 1 and MAX_CONCAT_TO_PIECES_LENGTH_RATIO * length < size_hint(
            self.op.result.shape[dim]
        ):
            return None
        merged = {p.pad for p in padded}
        whole = self._concat_with_zeros(
            [self._sum_of_range(p, padded) for p in sorted(ranges)], dim
        )
        for term in self.terms:
            if term not in merged:
                whole = self.add("add", term, whole)
        return self.replacement()

    def _padded_values(self, dim: int) -> list[_PaddedValue]:
        """Return the terms that are zero outside of a range of dimension `dim`."""
        found = []
        for term in self.terms:
            pad = self.rewriter.defining_op(term, "pad")
            if pad is None or not isinstance(pad.operands[1], Scalar) or pad.operands[1].value != 0:
                continue
            x, low, high = pad.inputs[0], pad.dims("low"), pad.dims("high")
            start, extent, after = low[dim], x.shape[dim], size_hint(high[dim])
            if any(low[k] != 0 or high[k] != 0 for k in range(len(low)) if k != dim):
                continue
            if not isinstance(start, int) or not isinstance(extent, int):
                continue
            if start >= 0 and extent > 0 and after >= 0:
                found.append(_PaddedValue(start, start + extent, x, term))
        return found if len({p.pad for p in found}) == len(found) else []

    def _sum_of_range(
        self, range_: tuple[int, int], padded: Sequence[_PaddedValue]
    ) -> _PaddedValue:
        """Return the sum of all values that are padded to one range."""
        first, *rest = [p for p in padded if (p.start, p.end) == range_]
        total = first.value
        for p in rest:
            total = self.add("add", total, p.value)
        return replace(first, value=total)

    def _concat_with_zeros(self, padded: Sequence[_PaddedValue], dim: int) -> Value:
        """Return the concat of values in order, with zeros between and around them."""
        shape = self.op.result.shape
        after = shape[dim] + -1 * padded[-1].end
        if len(padded) == 1 or not isinstance(after, int):
            low = tuple(padded[0].start if k == dim else 0 for k in range(len(shape)))
            high = tuple(after if k == dim else 0 for k in range(len(shape)))
            shifted = [replace(p, start=p.start - low[dim], end=p.end - low[dim]) for p in padded]
            concat = self._concat(shifted, dim, shifted[-1].end)
            return self.add("pad", concat, Scalar(0.0), low=low, high=high)
        return self._concat(padded, dim, padded[-1].end + after)

    def _concat(self, padded: Sequence[_PaddedValue], dim: int, extent: int) -> Value:
        """Return the concat along a dimension of `extent` elements, with zeros in the gaps."""
        operands: list[Value] = []
        end = 0
        for p in padded:
            if p.start > end:
                operands.append(self._zeros(p.value, dim, p.start - end))
            operands.append(p.value)
            end = p.end
        if end < extent:
            operands.append(self._zeros(padded[-1].value, dim, extent - end))
        return operands[0] if len(operands) == 1 else self.add("cat", *operands, dim=dim)

    def _zeros(self, like: Value, dim: int, extent: int) -> Value:
        shape = tuple(extent if k == dim else n for k, n in enumerate(like.shape))
        return self.add("full", value=0.0, shape=shape, dtype=like.dtype)


def _without_overlaps(padded: Sequence[_PaddedValue]) -> list[_PaddedValue]:
    """Return the values whose ranges are equal or disjoint, chosen greedily in order of start."""
    end, kept = 0, set[tuple[int, int]]()
    for range_ in sorted({(p.start, p.end) for p in padded}):
        if range_[0] >= end:
            kept.add(range_)
            end = range_[1]
    return [p for p in padded if (p.start, p.end) in kept]
