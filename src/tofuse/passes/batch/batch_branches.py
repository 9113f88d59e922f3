"""Does what several branches do to pieces of a tensor in one go, over one more dimension."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tofuse.ir.dims import contiguous_strides
from tofuse.ir.graph import Attr, Graph, Op, Operand, Scalar, Value
from tofuse.ops.table import OPS, Pattern
from tofuse.passes.batch.branch_match import (
    Branches,
    Bundle,
    Packed,
    Shared,
    Split,
    Step,
    candidates,
    closed,
)
from tofuse.passes.batch.branch_runs import nest_runs
from tofuse.passes.rewrite import Sweep, exposed
from tofuse.passes.toposort import in_order

Attrs = dict[str, Attr]


def batch_branches(graph: Graph) -> Graph:
    """cat(f(x[0:m]), f(x[m:2m]), ...) = f over the pieces of x, with a leading dimension of pieces

    What others read of a single branch becomes a slice of that. The branches are left alone where
    they differ in anything but their pieces, or read large values of their own; of these, runs of
    neighbours that match are batched, and joined with the rest.
    """
    batched = _batched(graph)
    if batched is not None:
        return batched
    cats = [op for op in graph.ops if op.kind == "cat" and len(op.inputs) > 2]
    while cats:
        nested, inner = nest_runs(graph, cats)
        batched = _batched(nested) if inner else None
        if batched is None:
            return graph
        left = {op.result for op in batched.ops if op.kind == "cat"}
        refused = {outer for cat, outer in inner.items() if cat.result in left}
        if not refused:
            return batched
        cats = [op for op in cats if op not in refused]
    return graph


def _batched(graph: Graph) -> Graph | None:
    """The graph with all cats batched whose branches match; None if there are none."""
    branches, cats = candidates(graph)
    batched = _Batch(graph, branches, cats).graph() if cats else None
    if batched is None and (rest := closed(cats, branches)):
        batched = _Batch(graph, branches, rest).graph()
    return batched


class _Batch:
    """The graph with branches batched; `done` holds each bundle's value, pieces outermost."""

    def __init__(self, graph: Graph, branches: Branches, cats: list[Op]) -> None:
        self.sweep = Sweep(graph)
        self.branches, self.nodes = branches, branches.nodes
        self.order = {bundle: k for k, bundle in enumerate(branches.nodes)}
        self.cats = set(cats)
        self.dropped = {op for cat in cats for op in branches.steps(cat)}
        self.done: dict[Bundle, Value] = {}
        self.released: set[Value] = set()
        self.given: set[Value] = set()  # batched values whose memory the caller gets
        self.users = graph.users()
        self.kept = {v for v in graph.outputs if v is not None}
        for cat in cats:
            nodes = (node for _, node in branches.below(cat.inputs))
            self.kept.update(node.value for node in nodes if isinstance(node, Shared))
        self.exposed = exposed(graph)

    def graph(self) -> Graph | None:
        """The new graph; None if somebody else's use of one branch is in the way.

        That is, the other branches wait for it, or it wants strides that no slice has.
        """
        if any(self.is_needed(op.result) and _is_strided(op.result) for op in self.dropped):
            return None
        for op in self.sweep.graph.ops:
            if op in self.cats:
                self.join(op)
            elif op not in self.dropped:
                self.sweep.emit(op)
        ops = in_order(self.sweep.ops)
        return None if ops is None else replace(self.sweep.graph, ops=ops)

    def join(self, cat: Op) -> None:
        """Batch the branches of a cat, and put their pieces side by side."""
        needed = [b for b, _ in self.branches.below(cat.inputs) if b not in self.done]
        for bundle in sorted(needed, key=self.order.__getitem__):
            self.done[bundle] = self.value(bundle, cat)
            self.release(bundle)
        whole, dim, rank = self.done[cat.inputs], cat.int("dim"), len(cat.result.shape)
        if dim:
            dims = (*range(1, dim + 1), 0, *range(dim + 1, rank + 1))
            whole = self.add(cat, "permute", whole, dims=dims)
        fresh = cat.result not in self.exposed or self.give(whole)
        if not fresh or _is_strided(cat.result):
            whole = self.add(cat, "reshape", whole, shape=cat.result.shape)
            self.define(cat, "convert", whole, cat.result, dtype=whole.dtype)
        else:
            self.define(cat, "reshape", whole, cat.result, shape=cat.result.shape)

    def release(self, bundle: Bundle) -> None:
        """Cut the batched value for those who read one branch alone."""
        node = self.nodes[bundle]
        if not isinstance(node, Step) or self.branches.is_view(bundle):
            return
        whole = self.done[bundle]
        shape, rank = (1, *whole.shape[1:]), len(whole.shape)
        for k, (v, op) in enumerate(zip(bundle, node.ops, strict=True)):
            if v in self.released or not self.is_needed(v):
                continue
            self.released.add(v)
            if v in self.exposed:
                self.give(whole)
            start = (k, *[0] * (rank - 1))
            attrs: Attrs = {"start": start, "step": (1,) * rank, "shape": shape, "dtype": v.dtype}
            self.define(op, "reshape", self.add(op, "slice", whole, **attrs), v, shape=v.shape)

    def is_needed(self, v: Value) -> bool:
        """Whether anybody reads the value who is not batched, or all branches of others do."""
        if v in self.kept:
            return True
        users = self.users.get(v, ())
        return any(op not in self.dropped and op not in self.cats for op in users)

    def give(self, value: Value) -> bool:
        """Let the caller have the memory of a value; false if he has it already."""
        root = self.sweep.root(value)
        if root in self.given:
            return False
        self.given.add(root)
        return True

    def value(self, bundle: Bundle, cat: Op) -> Value:
        """All pieces of a bundle as one value; a shared one is left as it is."""
        match self.nodes[bundle]:
            case Shared(value=value):
                return value
            case Split(first=first, dim=dim):
                return self.pieces(first, dim, len(bundle))
            case Packed(values=values):
                ones = [self.add(cat, "reshape", v, shape=(1, *v.shape)) for v in values]
                return self.add(cat, "cat", *ones, dim=0)
            case Step() as step:
                return self.step(step, len(bundle))
            case None:
                raise AssertionError("a bundle that does not match")

    def pieces(self, first: Op, dim: int, n: int) -> Value:
        """The slices that continue `first`, as a leading dimension of the value they cut."""
        x, shape = first.inputs[0], first.result.shape
        size = shape[dim]
        cut = (*shape[:dim], n * size, *shape[dim + 1 :])
        start, step = first.dims("start"), first.ints("step")
        if x.shape != cut or any(start) or any(s != 1 for s in step):
            x = self.add(first, "slice", x, start=start, step=step, shape=cut, dtype=x.dtype)
        x = self.add(first, "reshape", x, shape=(*shape[:dim], n, size, *shape[dim + 1 :]))
        if dim == 0:
            return x
        rest = (d for d in range(len(shape) + 1) if d != dim)
        return self.add(first, "permute", x, dims=(dim, *rest))

    def step(self, step: Step, n: int) -> Value:
        """The op of one step over one more dimension."""
        op = step.ops[0]
        attrs = BATCHED[_form(op)](op, n)
        operands: list[Operand] = []
        for k, x in enumerate(step.operands):
            if isinstance(x, Scalar):
                operands.append(x)
            elif not isinstance(self.nodes[x], Shared):
                operands.append(self.done[x])
            elif op.kind == "take" and k == 0:  # a table that every piece reads
                operands.append(self.done[x])
                attrs["dims"] = _shifted(op)
            else:
                operands.append(self.spread(op, self.done[x], n))
        return self.add(op, op.kind, *operands, **attrs)

    def spread(self, op: Op, x: Value, n: int) -> Value:
        """A shared value, the same for each piece."""
        dims = tuple(range(1, len(x.shape) + 1))
        return self.add(op, "broadcast", x, shape=(n, *x.shape), dims=dims)

    def define(self, like: Op, kind: str, x: Value, result: Value, **attrs: Attr) -> None:
        """One more op for a value that the graph has already."""
        self.sweep.emit(Op(kind, (x,), (result,), tuple(attrs.items()), like.loc))

    def add(self, like: Op, kind: str, *operands: Operand, **attrs: Attr) -> Value:
        op = self.sweep.make(kind, operands, like=like, **attrs)
        self.sweep.emit(op)
        return op.result


def _is_strided(v: Value) -> bool:
    """Whether the value lies otherwise than row by row."""
    return v.strides is not None and v.strides != contiguous_strides(v.shape)


def _form(op: Op) -> str:
    """The row of BATCHED for an op."""
    pattern = OPS[op.kind].pattern
    return pattern.value if pattern in (Pattern.ELEMENTWISE, Pattern.REDUCE) else op.kind


def _elementwise(op: Op, n: int) -> Attrs:
    return dict(op.attrs)


def _broadcast(op: Op, n: int) -> Attrs:
    return {"shape": (n, *op.dims("shape")), "dims": (0, *_shifted(op))}


def _reshape(op: Op, n: int) -> Attrs:
    return {"shape": (n, *op.dims("shape"))}


def _permute(op: Op, n: int) -> Attrs:
    return {"dims": (0, *_shifted(op))}


def _slice(op: Op, n: int) -> Attrs:
    start, step, shape = (0, *op.dims("start")), (1, *op.ints("step")), (n, *op.dims("shape"))
    return {"start": start, "step": step, "shape": shape, "dtype": op.result.dtype}


def _cat(op: Op, n: int) -> Attrs:
    return {"dim": op.int("dim") + 1}


def _pad(op: Op, n: int) -> Attrs:
    return {"low": (0, *op.dims("low")), "high": (0, *op.dims("high"))}


def _take(op: Op, n: int) -> Attrs:
    return {**dict(op.attrs), "dims": (0, *_shifted(op))}


def _reduce(op: Op, n: int) -> Attrs:
    return {**dict(op.attrs), "dims": _shifted(op)}


def _shifted(op: Op) -> tuple[int, ...]:
    """The attribute dims with a dimension in front; -1 stays, for it names none."""
    return tuple(d + 1 if d >= 0 else d for d in op.ints("dims"))


BATCHED: dict[str, Callable[[Op, int], Attrs]] = {
    "elementwise": _elementwise,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "reshape": _reshape,
    "permute": _permute,
    "slice": _slice,
    "cat": _cat,
    "pad": _pad,
    "take": _take,
}
