"""Apply local rewrite rules to a graph in one pass, operands before users."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Union

from tofuse.analysis.alias import AliasAnalysis, is_view, view_chain
from tofuse.ir.graph import Attr, Graph, Op, Operand, Value, substitute_operands
from tofuse.ops.result_types import make_op

Replacement = Union[Value, tuple[Op, ...]]  # noqa: UP007


class Rewriter:
    """The program rewritten so far, with the queries and op builders that rules use."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.ops: list[Op] = []
        self.producer: dict[Value, Op] = {}
        self.mapping: dict[Value, Value] = {}
        self.changed = False
        self._fresh_names = map("t{}".format, itertools.count())

    def defining_op(self, x: Operand, kind: str) -> Op | None:
        """Return the op that defines `x` if it has that kind, else None."""
        op = self.producer.get(x) if isinstance(x, Value) else None
        return op if op is not None and op.kind == kind else None

    def make_op(self, kind: str, operands: tuple[Operand, ...], *, like: Op, **attrs: Attr) -> Op:
        """Return a new op on the device and at the source location of `like`."""
        name = next(name for name in self._fresh_names if name not in self._names)
        return make_op(kind, operands, attrs, name=name, like=like)

    def legal_replacement(
        self, op: Op, value: Operand, *, eager_copies: bool | None = None
    ) -> Value | None:
        """Return `value` if it may replace the result of `op` for every user, else None.

        It may not if the caller or a PyTorch operator would see other strides, or an operator
        another storage offset. Where eager returns a copy, the result must not share memory with an
        input or another output, and must be all elements of its base in order.
        `eager_copies` defaults to whether `op` is no view.
        """
        if eager_copies is None:
            eager_copies = not is_view(op)
        old = op.result
        if not isinstance(value, Value) or value.type != old.type:
            return None
        if old in self._aliases.fixed_strides and old.layout != value.layout:
            return None
        if old in self._aliases.fixed_offsets:
            return None
        if old in self._escaping:
            base = self.base(value)
            if eager_copies and (base in self.graph.inputs or base in self._escaping):
                return None
            if eager_copies and not self._is_reshape_of_base(value):
                return None
            self._escaping |= {base, value}
        return value

    def overlaps_other_output(self, value: Value) -> bool:
        """Whether `value` escapes and an output that is no view of it shares some of its memory."""
        if value not in self._escaping:
            return False
        chain = self._aliases.view_chain(value)
        for output in self.graph.outputs:
            other = self._aliases.view_chain(output) if output is not None else (value,)
            if value in other or other[-1] is not chain[-1]:
                continue
            ancestor = next(v for v in other if v in chain)
            branches = [c[c.index(ancestor) - 1] for c in (chain, other) if c[0] is not ancestor]
            if len(branches) < 2:
                return True
            if not _are_disjoint_slices(*map(self._aliases.producers.__getitem__, branches)):
                return True
        return False

    def is_private(self, value: Value) -> bool:
        """Whether only rewritable ops see the strides and the memory of a value."""
        return value not in self._aliases.fixed_strides and value not in self._escaping

    @cached_property
    def users(self) -> Mapping[Value, Sequence[Op]]:
        """The ops of the original graph that read each of its values."""
        return self.graph.users()

    def emit(self, op: Op) -> None:
        """Append an op to the rewritten program."""
        self.ops.append(op)
        for r in op.results:
            self.producer[r] = op

    def replace_op(self, op: Op, value: Value) -> None:
        """Omit `op` and use `value` in place of its result."""
        self.mapping[op.result] = value
        self.changed = True

    def remap_operands(self, op: Op) -> Op:
        """Return the op with its operands replaced by their current values."""
        if not self.mapping.keys().isdisjoint(op.inputs):
            return replace(op, operands=substitute_operands(op.operands, self.mapping))
        return op

    def rewritten_graph(self) -> Graph:
        """Return the rewritten graph, or the same object if nothing was rewritten."""
        if not self.changed:
            return self.graph
        outputs = tuple(None if v is None else self.mapping.get(v, v) for v in self.graph.outputs)
        return replace(self.graph, ops=tuple(self.ops), outputs=outputs)

    def base(self, value: Value) -> Value:
        """Return the base of a value in the rewritten program; see `AliasAnalysis`."""
        return view_chain(value, self.producer)[-1]

    def _is_reshape_of_base(self, value: Value) -> bool:
        """Whether a value is all elements of its base, in order."""
        while (op := self.producer.get(value)) is not None and op.kind == "reshape":
            value = op.inputs[0]
        return self.base(value) is value

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(v.name for v in self.graph.values())

    @cached_property
    def _aliases(self) -> AliasAnalysis:
        """Of the graph before it is rewritten."""
        return AliasAnalysis(self.graph)

    @cached_property
    def _escaping(self) -> set[Value]:
        """The values that the caller may see; grows as values take the place of others."""
        return set(self._aliases.escaping)


def _are_disjoint_slices(a: Op, b: Op) -> bool:
    """Whether two views of one value are slices without a common element."""
    if a.kind != "slice" or b.kind != "slice":
        return False
    bounds = zip(_slice_bounds(a), _slice_bounds(b), strict=True)
    return any(max(p) < min(q) or max(q) < min(p) for p, q in bounds)


def _slice_bounds(op: Op) -> list[tuple[float, float]]:
    """Return the first and last index that a slice reads of each dimension; (0, inf) if unknown."""
    rows = zip(op.dims("start"), op.ints("step"), op.result.shape, strict=True)
    return [
        (a, a + (n - 1) * s) if isinstance(a, int) and isinstance(n, int) else (0, math.inf)
        for a, s, n in rows
    ]


class OpBuilder:
    """Collect the ops that replace one op."""

    def __init__(self, op: Op, rewriter: Rewriter) -> None:
        self.op, self.rewriter = op, rewriter
        self.ops: list[Op] = []

    def add(self, kind: str, *operands: Operand, **attrs: Attr) -> Value:
        """Append an op and return its result."""
        self.ops.append(self.rewriter.make_op(kind, operands, like=self.op, **attrs))
        return self.ops[-1].result

    def replacement(self) -> tuple[Op, ...]:
        """Return the ops; the last one defines the result of the replaced op."""
        return (*self.ops[:-1], replace(self.ops[-1], results=self.op.results))


def redefine(op: Op, kind: str, *operands: Operand, **attrs: Attr) -> tuple[Op, ...]:
    """Return another op that defines the same results."""
    return (op.redefined(kind, *operands, **attrs),)


def identity(op: Op, rewriter: Rewriter) -> Replacement | None:
    """op(x) = x, if the types are equal"""
    return rewriter.legal_replacement(op, op.operands[0])


RewriteRule = Callable[[Op, Rewriter], Replacement | None]


def rewrite(graph: Graph, rules: Mapping[str, tuple[RewriteRule, ...]]) -> Graph:
    """Apply the rules for each op's kind until none applies; return `graph` itself if none did.

    A rule returns None, a value that replaces the op's result, or ops that replace the op. The last
    of those ops defines the op's result.
    """
    rewriter = Rewriter(graph)
    for op in graph.ops:
        pending = [op]
        while pending:
            current, found = rewriter.remap_operands(pending.pop()), None
            for rule in rules.get(current.kind, ()):
                if (found := rule(current, rewriter)) is not None:
                    break
            if found is None:
                rewriter.emit(current)
            elif isinstance(found, Value):
                rewriter.replace_op(current, found)
            else:
                rewriter.changed = True
                pending.extend(reversed(found))
    return rewriter.rewritten_graph()
