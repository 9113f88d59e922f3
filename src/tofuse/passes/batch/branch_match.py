"""Find the branches of concats that are legal and profitable to batch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import Union

from tofuse.analysis.alias import AliasAnalysis, has_effect, is_view
from tofuse.analysis.isomorphism import (
    Branches,
    BranchMatcher,
    BranchNode,
    Bundle,
    Equal,
    Shared,
    Sliced,
    SliceRead,
    Stacked,
)
from tofuse.cost.thresholds import MIN_WORK_PER_PACKED
from tofuse.ir.dims import size_hint
from tofuse.ir.graph import Graph, Op, Scalar, Value, show_attr
from tofuse.ops.table import OPS, Pattern

BranchRange = tuple[int, int]  # the first branch, and one past the last
# The operands of each concat, with branches to batch in place of the values they compute.
Targets = dict[Op, tuple[Union[Value, Branches[Value]], ...]]  # noqa: UP007


class ConcatBranches:
    """The branches of the concats of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.producers = graph.producers()
        self.users = graph.users()
        self.outputs = {v for v in graph.outputs if v is not None}
        self.matcher = BranchMatcher(self.describe)

    @cached_property
    def escaping(self) -> frozenset[Value]:
        return AliasAnalysis(self.graph).escaping

    @cached_property
    def effects(self) -> dict[Op, int]:
        """The number of ops before each op that may have written into a tensor."""
        count, before = 0, {}
        for op in self.graph.ops:
            before[op] = count
            count += has_effect(op) and bool(op.inputs)
        return before

    def describe(self, v: Value) -> BranchNode[Value]:
        """Describe a value to the matcher. Inputs and results of PyTorch's operators are leaves."""
        dtype = v.dtype.value + ("" if v.type.on_host else f"@{v.type.device}")
        size = f"({', '.join(map(str, v.shape))})"
        op = self.producers.get(v)
        if op is None:
            return BranchNode("", dtype=dtype, size=size, leaf=True)
        read = None
        if op.kind == "slice":
            read = SliceRead(op.inputs[0], op.dims("start"), v.shape, op.ints("step"))
        name, leaf = op.kind, op.kind == "opaque"
        if leaf:
            name = str(op.attr("target"))
        return BranchNode(
            name,
            op.inputs,
            tuple(
                ("constant", repr(x)) if isinstance(x, Scalar) else ("operand", "a tensor")
                for x in op.operands
            ),
            tuple((f"{key} of {name}", show_attr(value)) for key, value in op.attrs),
            dtype,
            size,
            leaf,
            unique=not leaf and OPS[op.kind].pattern not in BATCHABLE,
            slice=read,
        )

    def targets(self) -> Targets:
        """Return the concats with branches to batch."""
        cats = [op for op in self.graph.ops if op.kind == "cat" and len(op.inputs) > 1]
        found = {cat: tuple(self._operands(cat)) for cat in cats}
        return {cat: operands for cat, operands in found.items() if operands != cat.operands}

    def _operands(self, cat: Op) -> Iterator[Value | Branches[Value]]:
        whole, n = self.matcher.match(cat.inputs), len(cat.inputs)
        worth = whole is not None and self._is_worth_batching(cat, whole)
        ends = dict([(0, n)] if worth else self.matching_ranges(cat))
        start = 0
        while start < n:
            end = ends.get(start, start + 1)
            branches = self.matcher.match(cat.inputs[start:end]) if start in ends else None
            if branches is not None and self.rejection(cat, branches) is None:
                yield branches
            else:
                yield from cat.inputs[start:end]
            start = end

    def _is_worth_batching(self, cat: Op, branches: Branches[Value]) -> bool:
        root = branches.roles[branches.root]
        if isinstance(root, (Shared, Stacked)):
            return False
        # of a concat of views that the caller gets, eager makes a copy
        return cat.result not in self.escaping or not self.is_view_of_leaf(branches, branches.root)

    def matching_ranges(self, cat: Op) -> list[BranchRange]:
        """Return the longest ranges of two or more consecutive isomorphic branches, in order."""
        inputs, n = cat.inputs, len(cat.inputs)
        starts = [k for k in range(1, n) if not self._compute_the_same(inputs[k - 1 : k + 1])]
        ranges = [(a, b) for a, b in pairwise((0, *starts, n)) if b - a > 1]
        return [(a, b) for a, b in ranges if self._compute_the_same(inputs[a:b])]

    def _compute_the_same(self, values: Bundle[Value]) -> bool:
        branches = self.matcher.match(values)
        return branches is not None and (
            isinstance(branches.roles[values], Equal) and not self.is_view_of_leaf(branches, values)
        )

    def rejection(self, cat: Op, branches: Branches[Value]) -> str | None:
        """Return why isomorphic branches are not batched; None if that is legal and profitable."""
        # batching moves the ops to the last of them
        equal, slices = branches.bundles(Equal), branches.bundles(Sliced)
        moved = [v for bundle in equal for v in bundle] + [bundle[0] for bundle in slices]
        if any(self.effects[self.producers[v]] != self.effects[cat] for v in moved):
            return "an operator between them may write into a tensor"
        if any(len({v in self.outputs for v in bundle}) > 1 for bundle in equal):
            return "the program returns a value of one branch, which would keep all in memory"
        stacked = branches.bundles(Stacked)
        sizes = {bundle: size_hint(bundle[0].type.numel) for bundle in branches.roles}
        work = max((n for bundle, n in sizes.items() if bundle not in stacked), default=0)
        if sum(sizes[bundle] for bundle in stacked) * MIN_WORK_PER_PACKED > work:
            return "each branch reads other tensors, which would have to be copied into one first"
        return None

    def computing_ops(self, branches: Branches[Value]) -> list[Op]:
        """Return the ops of all branches except views of leaves."""
        bundles = [b for b in branches.bundles(Equal) if not self.is_view_of_leaf(branches, b)]
        return [self.producers[v] for bundle in bundles for v in bundle]

    def is_view_of_leaf(self, branches: Branches[Value], bundle: Bundle[Value]) -> bool:
        """Whether a bundle is a leaf or a view of a leaf."""
        while isinstance(role := branches.roles[bundle], Equal):
            if not is_view(self.producers[bundle[0]]) or not role.operands:
                return False
            bundle = role.operands[0]
        return True


def self_contained(targets: Targets, concats: ConcatBranches) -> Targets:
    """Return the concats whose branches have no users outside of the returned concats."""
    ops = {
        cat: [op for x in operands if isinstance(x, Branches) for op in concats.computing_ops(x)]
        for cat, operands in targets.items()
    }
    while True:
        inside = {op for cat in targets for op in (cat, *ops[cat])}
        read = concats.outputs | unbatched_operands(targets)
        remaining = {
            cat: operands
            for cat, operands in targets.items()
            if all(
                op.result not in read and inside.issuperset(concats.users.get(op.result, ()))
                for op in ops[cat]
            )
        }
        if len(remaining) == len(targets):
            return remaining
        targets = remaining


def unbatched_operands(targets: Targets) -> set[Value]:
    """Return the values that the concats read beside the branches."""
    return {x for operands in targets.values() for x in operands if isinstance(x, Value)}


# A random op is keyed by the index in its own result, so it cannot become a slice of another one.
BATCHABLE = frozenset(Pattern) - {
    Pattern.SCAN,
    Pattern.SCATTER,
    Pattern.RANDOM,
    Pattern.SOURCE,
    Pattern.OPAQUE,
}
