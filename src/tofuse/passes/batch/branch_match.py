"""Find isomorphic branches: computations with the same ops on different slices or tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Union

from tofuse.cost.thresholds import MIN_WORK_PER_PACKED
from tofuse.ir.dims import size_hint
from tofuse.ir.graph import Graph, Op, Scalar, Value
from tofuse.ops.table import OPS, Pattern
from tofuse.passes.dead_code import has_effect
from tofuse.passes.rewrite import VIEWS, escaping_values

Bundle = tuple[Value, ...]
"""The corresponding values of all branches, in branch order."""


@dataclass(frozen=True)
class SharedValue:
    """A bundle of one value that all branches read."""

    value: Value


@dataclass(frozen=True)
class AdjacentSlices:
    """A bundle of adjacent slices of one value along `dim`; `first` is the slice of branch 0."""

    first: Op
    dim: int


@dataclass(frozen=True)
class PackedValues:
    """A bundle of unrelated values, which have to be copied into one tensor."""

    values: Bundle


@dataclass(frozen=True)
class IsomorphicOps:
    """A bundle of results of the same op in every branch."""

    ops: tuple[Op, ...]
    operands: tuple[Bundle | Scalar, ...]


BundleNode = Union[SharedValue, AdjacentSlices, PackedValues, IsomorphicOps]  # noqa: UP007


class BranchMatcher:
    """Match bundles of values. `nodes` has operands before users, and None for a mismatch."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: dict[Bundle, BundleNode | None] = {}
        self._producers = graph.producers()

    @cached_property
    def outputs(self) -> frozenset[Value | None]:
        return frozenset(self.graph.outputs)

    @cached_property
    def effects(self) -> dict[Op, int]:
        """The number of ops before each op that may have written into a tensor."""
        count, before = 0, {}
        for op in self.graph.ops:
            before[op] = count
            count += has_effect(op) and bool(op.inputs)
        return before

    def match(self, root: Bundle) -> bool:
        """Whether the values of a bundle are computed by isomorphic ops."""
        stack, opened = [root], dict[Bundle, IsomorphicOps]()
        while stack:
            bundle = stack[-1]
            if bundle in self.nodes:
                stack.pop()
                continue
            node = opened.get(bundle) or self._classify(bundle)
            if isinstance(node, IsomorphicOps):
                operands = [x for x in node.operands if not isinstance(x, Scalar)]
                missing = [x for x in operands if x not in self.nodes]
                if missing and bundle not in opened:
                    opened[bundle] = node
                    stack += missing
                    continue
                if any(self.nodes[x] is None for x in operands):
                    node = None
            self.nodes[bundle] = node
            stack.pop()
        return self.nodes[root] is not None

    def operand_tree(self, root: Bundle) -> Iterator[tuple[Bundle, BundleNode]]:
        """Yield a matched bundle and the bundles it is computed from, users before operands."""
        stack, visited = [root], {root}
        while stack:
            bundle = stack.pop()
            node = self.nodes[bundle]
            assert node is not None
            yield bundle, node
            if isinstance(node, IsomorphicOps):
                for x in node.operands:
                    if not isinstance(x, Scalar) and x not in visited:
                        visited.add(x)
                        stack.append(x)

    def _classify(self, bundle: Bundle) -> BundleNode | None:
        first = bundle[0]
        if all(v is first for v in bundle):
            return SharedValue(first)
        if any(v.type != first.type for v in bundle):
            return None
        ops = tuple(op for v in bundle if (op := self._producers.get(v)) is not None)
        if all(op.kind == "opaque" for op in ops):
            return PackedValues(bundle)
        if len(ops) < len(bundle) or any(op.kind != ops[0].kind for op in ops):
            return None
        if ops[0].kind == "slice" and (split := _match_slices(ops)) is not None:
            return split
        return _match_ops(ops)

    def is_view_of_leaf(self, bundle: Bundle) -> bool:
        """Whether the bundle is a leaf or a view of a leaf."""
        node = self.nodes[bundle]
        while isinstance(node, IsomorphicOps):
            operand = node.operands[0]
            if node.ops[0].kind not in VIEWS or isinstance(operand, Scalar):
                return False
            node = self.nodes[operand]
        return True

    def computing_ops(self, cat: Op) -> list[Op]:
        """Return the ops of all branches except views of leaves."""
        return [
            op
            for bundle, node in self.operand_tree(cat.inputs)
            if isinstance(node, IsomorphicOps) and not self.is_view_of_leaf(bundle)
            for op in node.ops
        ]

    def moved_ops(self, cat: Op) -> list[Op]:
        """Return the ops that batching moves to the last of them, including the slices."""
        nodes = [node for _, node in self.operand_tree(cat.inputs)]
        ops = [op for node in nodes if isinstance(node, IsomorphicOps) for op in node.ops]
        return ops + [node.first for node in nodes if isinstance(node, AdjacentSlices)]


def batchable_concats(graph: Graph) -> tuple[BranchMatcher, list[Op]]:
    """Return the concats of isomorphic branches that are legal and profitable to batch."""
    matcher, found = BranchMatcher(graph), list[Op]()
    cats = [op for op in graph.ops if op.kind == "cat" and len({v.type for v in op.inputs}) == 1]
    if not cats:
        return matcher, found
    escaping = escaping_values(graph)
    for cat in cats:
        if len(cat.inputs) < 2 or not matcher.match(cat.inputs):
            continue
        root = matcher.nodes[cat.inputs]
        if isinstance(root, (SharedValue, PackedValues)):
            continue
        if cat.result in escaping and matcher.is_view_of_leaf(cat.inputs):
            continue  # eager makes a copy
        if rejection(cat, matcher) is None:
            found.append(cat)
    return matcher, found


def rejection(cat: Op, matcher: BranchMatcher) -> str | None:
    """Return why isomorphic branches are not batched; None if that is legal and profitable."""
    effects = matcher.effects
    if any(effects[op] != effects[cat] for op in matcher.moved_ops(cat)):
        return "an operator between them may write into a tensor"
    return _cost_rejection(cat, matcher)


def self_contained(cats: list[Op], matcher: BranchMatcher) -> list[Op]:
    """Return the concats whose branches have no users outside of the returned concats."""
    users, outputs = matcher.graph.users(), set(matcher.graph.outputs)
    ops = {cat: matcher.computing_ops(cat) for cat in cats}
    while True:
        inside = {op for cat in cats for op in (cat, *ops[cat])}
        remaining = [
            cat
            for cat in cats
            if all(
                op.result not in outputs and inside.issuperset(users.get(op.result, ()))
                for op in ops[cat]
            )
        ]
        if len(remaining) == len(cats):
            return remaining
        cats = remaining


def _cost_rejection(cat: Op, matcher: BranchMatcher) -> str | None:
    """Return why batching is not profitable, or None if it is."""
    outputs, work, packed = matcher.outputs, 0, 0
    for bundle, node in matcher.operand_tree(cat.inputs):
        size = size_hint(bundle[0].type.numel)
        if isinstance(node, PackedValues):
            packed += size
        else:
            work = max(work, size)
        if isinstance(node, IsomorphicOps) and len({v in outputs for v in bundle}) > 1:
            return "the program returns a value of one branch, which would keep all in memory"
    if packed * MIN_WORK_PER_PACKED > work:
        return "each branch reads other tensors, which would have to be copied into one first"
    return None


def _match_slices(ops: tuple[Op, ...]) -> AdjacentSlices | None:
    """Return the match if the ops are adjacent slices of one value along one dimension."""
    first = ops[0]
    start, second = first.dims("start"), ops[1].dims("start")
    moved = [d for d, (a, b) in enumerate(zip(start, second, strict=True)) if a != b]
    if len(moved) != 1 or any(op.inputs[0] is not first.inputs[0] for op in ops):
        return None
    dim = moved[0]
    size, step = first.result.shape[dim], first.ints("step")
    if not isinstance(size, int) or step[dim] != 1:
        return None
    for k, op in enumerate(ops):
        expected = (*start[:dim], start[dim] + k * size, *start[dim + 1 :])
        if op.dims("start") != expected or op.ints("step") != step:
            return None
    return AdjacentSlices(first, dim)


def _match_ops(ops: tuple[Op, ...]) -> IsomorphicOps | None:
    """Return the match if the ops have equal attributes, constants and numbers of operands."""
    first = ops[0]
    if OPS[first.kind].pattern not in BATCHABLE:
        return None
    if any(op.attrs != first.attrs or len(op.operands) != len(first.operands) for op in ops):
        return None
    operands: list[Bundle | Scalar] = []
    for column in zip(*(op.operands for op in ops), strict=True):
        values = tuple(x for x in column if isinstance(x, Value))
        scalars = tuple(x for x in column if isinstance(x, Scalar))
        if (values and scalars) or len({x.key for x in scalars}) > 1:
            return None
        operands.append(values or scalars[0])
    return IsomorphicOps(ops, tuple(operands))


# A random op is keyed by the index in its own result, so it cannot become a slice of another one.
BATCHABLE = frozenset(
    {
        Pattern.ELEMENTWISE,
        Pattern.BROADCAST,
        Pattern.VIEW,
        Pattern.CONCAT,
        Pattern.GATHER,
        Pattern.REDUCE,
    }
)
