"""Unroll and jam: copies of the statements of a loop for several iterations at the same time.

A load that the iterations share then runs once for all, and their sums have accumulators of their
own, so that one sum does not wait for another. If a sum is in an array, the terms of these
iterations are first added to each other, then once to the array.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tofuse.backends.cpu.llvm.active_reductions import ActiveReductions, reductions_in
from tofuse.backends.cpu.llvm.value_ranges import COPY_MARK
from tofuse.ir.affine import AffineExpr
from tofuse.ir.kernel import WRITES, Reduce, Stmt, Uniform
from tofuse.ir.nest import Accumulator, For, Nest, Node, Reload, Scratch, StmtNode
from tofuse.ir.statement import StatementMap


def can_copy(node: For, nest: Nest, reductions: ActiveReductions, *, is_whole: bool) -> bool:
    """Whether iterations of a loop may run at the same time: registers hold what they compute.

    If a sum runs over the loop's axis, the loop must update the sum and be whole: a loop over a
    tile may begin anywhere, so that folds of stages would miss their steps.
    """
    axis, jam = node.loop.axis, node.loop.jam
    if any(isinstance(s, Reduce) and axis in s.over for s in nest.kernel.body):
        updated = {a for r in reductions_in(node.body) for a in r.over}
        is_power = jam & (jam - 1) == 0  # so that it divides the steps between folds
        if not is_whole or not is_power or axis not in updated:
            return False
    return _Copier(axis, reductions).can_copy(node.body, nest.spills.keys())


def copy_iterations(node: For, count: int, reductions: ActiveReductions) -> tuple[Node, ...]:
    """Return the body of a loop, copied for `count` consecutive iterations.

    The index of the loop is that of the first iteration. `reductions` learns the axes and dtypes
    of the copies.
    """
    return tuple(_Copier(node.loop.axis, reductions).copies(node.body, count))


@dataclass(frozen=True)
class _Copier:
    """Copies the statements that depend on an axis; see `copy_iterations`."""

    axis: str
    known: ActiveReductions

    def can_copy(
        self,
        nodes: Sequence[Node],
        spilled: Iterable[str],
        begun: frozenset[str] = frozenset(),
        inside: frozenset[str] = frozenset(),
    ) -> bool:
        """Whether registers hold all values in these nodes that depend on the axis.

        `begun` are the reductions that began inside the loop over it, `inside` the axes of the
        loops between that loop and the nodes.
        """
        names = frozenset(spilled)
        for node in nodes:
            match node:
                case For():
                    arrays = (a.array for a in node.reductions)
                    if any(x is not None and x.index.terms for x in arrays):
                        return False
                    own = begun.union(a.reduce.name for a in node.reductions)
                    if not self.can_copy(node.body, names, own, inside | {node.loop.axis}):
                        return False
                case StmtNode():
                    s = node.stmt
                    if isinstance(s, Uniform):
                        return False
                    if isinstance(s, Reduce) and not (
                        s.name in begun or self._can_copy_column_reduction(s, inside)
                    ):
                        return False
                    if not isinstance(s, WRITES) and s.name in names and self._varies(s.name):
                        return False
        return True

    def _can_copy_column_reduction(self, s: Reduce, inside: frozenset[str]) -> bool:
        """Whether iterations of a reduction that began outside of the loop have parts of an array.

        Loops `inside` would fold the stages of the first part only.
        """
        if not self.known.is_column_reduction(s):
            return False
        if self.axis in s.over:
            return True
        a = self.known.array_of(s.name)
        has_stages = a is not None and a.stages
        return self._varies(s.name) and not (has_stages and inside.intersection(s.over))

    def copies(self, nodes: Sequence[Node], count: int) -> Iterator[Node]:
        """Yield the nodes, each followed by its copies for later iterations."""
        for node in nodes:
            match node:
                case Reload():
                    yield node
                    if self._varies(node.name):
                        yield from (self._reload(node, r) for r in range(1, count))
                case StmtNode(stmt=Reduce() as s) if self.axis in s.over:
                    terms = self.known.array_terms.get(s.name, (s.arg,))
                    self.known.array_terms[s.name] = tuple(
                        self._name(t, r) for r in range(count) for t in terms
                    )
                    yield node
                case StmtNode():
                    yield node
                    if self.axis in self.known.statement_axes[node.stmt]:
                        yield from (StmtNode(self._copy(node.stmt, r)) for r in range(1, count))
                case For():
                    body = tuple(self.copies(node.body, count))
                    accumulators = tuple(
                        self._accumulator(a, r)
                        for a in node.reductions
                        for r in (range(count) if self._varies(a.reduce.name) else (0,))
                    )
                    ahead = tuple(
                        replace(s, index=self._index(s.index, r))
                        for s in node.prefetch
                        for r in (range(count) if s.index.coefficient(self.axis) != 0 else (0,))
                    )
                    yield replace(node, body=body, reductions=accumulators, prefetch=ahead)

    def _reload(self, node: Reload, r: int) -> Reload:
        name, scratch = self._name(node.name, r), node.scratch
        self.known.value_axes[name] = self.known.value_axes[node.name]
        return Reload(name, replace(scratch, index=self._index(scratch.index, r)))

    def _accumulator(self, a: Accumulator, r: int) -> Accumulator:
        if r == 0:
            return a
        reduce = self._copy(a.reduce, r)
        assert isinstance(reduce, Reduce)
        return replace(a, reduce=reduce)

    def _copy(self, s: Stmt, r: int) -> Stmt:
        """Return the copy of a statement for iteration `r`, the same one at each call."""
        key = s, self.axis, r
        if key not in self.known.copies:
            copied = s.map(
                StatementMap(index=lambda i: self._index(i, r), value=lambda v: self._name(v, r))
            )
            if not isinstance(copied, WRITES):
                copied = replace(copied, name=self._name(copied.name, r))
            self.known.add_copy(key, copied)
        copied = self.known.copies[key]
        if isinstance(s, Reduce) and isinstance(copied, Reduce):
            self._copy_array(s, copied, r)
        return copied

    def _copy_array(self, s: Reduce, copied: Reduce, r: int) -> None:
        """Let the copy of a reduction in an array use the array's part for its iteration."""
        a = self.known.array_of(s.name)
        if a is None:
            return

        def part(scratch: Scratch) -> Scratch:
            return replace(scratch, index=self._index(scratch.index, r))

        assert a.array is not None
        stages = tuple(map(part, a.stages))
        self.known.copied_arrays[copied.name] = Accumulator(copied, part(a.array), None, stages)
        if s.name in self.known.array_terms:
            terms = self.known.array_terms[s.name]
            self.known.array_terms[copied.name] = tuple(self._name(t, r) for t in terms)

    def _index(self, index: AffineExpr, r: int) -> AffineExpr:
        return index + AffineExpr((), index.coefficient(self.axis) * r)

    def _name(self, value: str, r: int) -> str:
        return f"{value}{COPY_MARK}{self.axis}.{r}" if r and self._varies(value) else value

    def _varies(self, value: str) -> bool:
        return self.axis in self.known.value_axes[value]
