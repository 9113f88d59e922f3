"""Finds branches of a program that do the same to different pieces: one bundle of values a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Union

from tofuse.ir.dims import hint
from tofuse.ir.graph import Graph, Op, Scalar, Value
from tofuse.ops.table import OPS, Pattern
from tofuse.passes.dead_code import has_effect
from tofuse.passes.rewrite import VIEWS, exposed

Bundle = tuple[Value, ...]
"""What the branches have in the same place, branch by branch."""


@dataclass(frozen=True)
class Shared:
    """All branches read one value."""

    value: Value


@dataclass(frozen=True)
class Split:
    """Branch k reads piece k of one value: `first` is the slice of branch 0, along `dim`."""

    first: Op
    dim: int


@dataclass(frozen=True)
class Packed:
    """Every branch reads a value of its own."""

    values: Bundle


@dataclass(frozen=True)
class Step:
    """Every branch does the same op."""

    ops: tuple[Op, ...]
    operands: tuple[Bundle | Scalar, ...]


Node = Union[Shared, Split, Packed, Step]  # noqa: UP007


class Branches:
    """The bundles of a graph, operands before users; None for those that do not match."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: dict[Bundle, Node | None] = {}
        self._producers = graph.producers()

    @cached_property
    def outputs(self) -> frozenset[Value | None]:
        return frozenset(self.graph.outputs)

    @cached_property
    def effects(self) -> dict[Op, int]:
        """Per op how many ops before it may have written into a tensor that they read."""
        count, before = 0, {}
        for op in self.graph.ops:
            before[op] = count
            count += has_effect(op) and bool(op.inputs)
        return before

    def match(self, root: Bundle) -> bool:
        """Whether the values of a bundle are computed in the same way from their leaves up."""
        stack, opened = [root], dict[Bundle, Step]()
        while stack:
            bundle = stack[-1]
            if bundle in self.nodes:
                stack.pop()
                continue
            node = opened.get(bundle) or self._classify(bundle)
            if isinstance(node, Step):
                below = [x for x in node.operands if not isinstance(x, Scalar)]
                missing = [x for x in below if x not in self.nodes]
                if missing and bundle not in opened:
                    opened[bundle] = node
                    stack += missing
                    continue
                if any(self.nodes[x] is None for x in below):
                    node = None
            self.nodes[bundle] = node
            stack.pop()
        return self.nodes[root] is not None

    def below(self, root: Bundle) -> Iterator[tuple[Bundle, Node]]:
        """The bundles that a matched bundle is computed from and itself, users before operands."""
        stack, seen = [root], {root}
        while stack:
            bundle = stack.pop()
            node = self.nodes[bundle]
            assert node is not None
            yield bundle, node
            if isinstance(node, Step):
                for x in node.operands:
                    if not isinstance(x, Scalar) and x not in seen:
                        seen.add(x)
                        stack.append(x)

    def _classify(self, bundle: Bundle) -> Node | None:
        first = bundle[0]
        if all(v is first for v in bundle):
            return Shared(first)
        if any(v.type != first.type for v in bundle):
            return None
        ops = tuple(op for v in bundle if (op := self._producers.get(v)) is not None)
        if all(op.kind == "opaque" for op in ops):
            return Packed(bundle)
        if len(ops) < len(bundle) or any(op.kind != ops[0].kind for op in ops):
            return None
        if ops[0].kind == "slice" and (split := _split(ops)) is not None:
            return split
        return _step(ops)

    def is_view(self, bundle: Bundle) -> bool:
        """Whether the values are leaves, or views of leaves."""
        node = self.nodes[bundle]
        while isinstance(node, Step):
            below = node.operands[0]
            if node.ops[0].kind not in VIEWS or isinstance(below, Scalar):
                return False
            node = self.nodes[below]
        return True

    def steps(self, cat: Op) -> list[Op]:
        """The ops of all branches that compute something."""
        return [
            op
            for bundle, node in self.below(cat.inputs)
            if isinstance(node, Step) and not self.is_view(bundle)
            for op in node.ops
        ]

    def reads(self, cat: Op) -> list[Op]:
        """The ops that batching moves behind the last of them, down to what cuts the pieces."""
        nodes = [node for _, node in self.below(cat.inputs)]
        ops = [op for node in nodes if isinstance(node, Step) for op in node.ops]
        return ops + [node.first for node in nodes if isinstance(node, Split)]


def candidates(graph: Graph) -> tuple[Branches, list[Op]]:
    """The cats whose operands are matching branches, where batching them is safe and cheap."""
    branches, found = Branches(graph), list[Op]()
    cats = [op for op in graph.ops if op.kind == "cat" and len({v.type for v in op.inputs}) == 1]
    if not cats:
        return branches, found
    seen = exposed(graph)
    for cat in cats:
        if len(cat.inputs) < 2 or not branches.match(cat.inputs):
            continue
        root = branches.nodes[cat.inputs]
        if isinstance(root, (Shared, Packed)):
            continue
        if cat.result in seen and branches.is_view(cat.inputs):
            continue  # eager makes a copy
        if refusal(cat, branches) is None:
            found.append(cat)
    return branches, found


def refusal(cat: Op, branches: Branches) -> str | None:
    """Why matching branches are not batched; None where that is safe and cheap."""
    effects = branches.effects
    if any(effects[op] != effects[cat] for op in branches.reads(cat)):
        return "between them an operator may write into a tensor"
    return _dear(cat, branches)


def closed(cats: list[Op], branches: Branches) -> list[Op]:
    """Those cats of which nobody else reads what the branches compute."""
    users, outputs = branches.graph.users(), set(branches.graph.outputs)
    steps = {cat: branches.steps(cat) for cat in cats}
    while True:
        inside = {op for cat in cats for op in (cat, *steps[cat])}
        kept = [
            cat
            for cat in cats
            if all(
                op.result not in outputs and inside.issuperset(users.get(op.result, ()))
                for op in steps[cat]
            )
        ]
        if len(kept) == len(cats):
            return kept
        cats = kept


def _dear(cat: Op, branches: Branches) -> str | None:
    """Why it does not pay: little may be packed, and no output keep all branches for one."""
    outputs, work, packed = branches.outputs, 0, 0
    for bundle, node in branches.below(cat.inputs):
        size = hint(bundle[0].type.numel)
        if isinstance(node, Packed):
            packed += size
        else:
            work = max(work, size)
        if isinstance(node, Step) and len({v in outputs for v in bundle}) > 1:
            return "the program returns what one of them computes, which would keep all in memory"
    return (
        None
        if packed * PACKING <= work
        else "each reads tensors of its own, which would have to be packed first"
    )


def _split(ops: tuple[Op, ...]) -> Split | None:
    """Slices of one value that follow one another along one dimension, in branch order."""
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
    return Split(first, dim)


def _step(ops: tuple[Op, ...]) -> Step | None:
    first = ops[0]
    if OPS[first.kind].pattern not in STEPS:
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
    return Step(ops, tuple(operands))


# A random op draws by the logical index of its own result, so it cannot become a piece of another.
STEPS = frozenset(
    {
        Pattern.ELEMENTWISE,
        Pattern.BROADCAST,
        Pattern.VIEW,
        Pattern.JOIN,
        Pattern.TAKE,
        Pattern.REDUCE,
    }
)

# Packing writes and reads again what the branches have of their own; an eighth of the work is lost
# in what batching gains: n - 1 launches, and one parallel loop in place of n.
PACKING = 8
