"""Run isomorphic branches as one computation with an additional batch dimension."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tofuse.ir.dims import contiguous_strides
from tofuse.ir.graph import Attr, Graph, Op, Operand, Scalar, Value
from tofuse.ops.table import OPS, Pattern
from tofuse.passes.batch.branch_match import (
    AdjacentSlices,
    BranchMatcher,
    Bundle,
    IsomorphicOps,
    PackedValues,
    SharedValue,
    batchable_concats,
    self_contained,
)
from tofuse.passes.batch.branch_ranges import group_matching_ranges
from tofuse.passes.rewrite import Rewriter, escaping_values
from tofuse.passes.toposort import toposort

Attrs = dict[str, Attr]


def batch_branches(graph: Graph) -> Graph:
    """cat(f(x[0:m]), f(x[m:2m]), ...) = reshape(f(reshape(x))), if the branches are isomorphic

    The reshape of x adds a leading batch dimension. Other users of one branch read a slice of the
    batched value. If not all branches match, ranges of consecutive matching branches are batched.
    """
    batched = _batch_matching(graph)
    if batched is not None:
        return batched
    cats = [op for op in graph.ops if op.kind == "cat" and len(op.inputs) > 2]
    while cats:
        nested, outer_of = group_matching_ranges(graph, cats)
        batched = _batch_matching(nested) if outer_of else None
        if batched is None:
            return graph
        remaining = {op.result for op in batched.ops if op.kind == "cat"}
        unbatched = {outer for cat, outer in outer_of.items() if cat.result in remaining}
        if not unbatched:
            return batched
        cats = [op for op in cats if op not in unbatched]
    return graph


def _batch_matching(graph: Graph) -> Graph | None:
    """Return the graph with all isomorphic branches batched; None if there are none."""
    matcher, cats = batchable_concats(graph)
    batched = _BatchBuilder(graph, matcher, cats).graph() if cats else None
    if batched is None and (rest := self_contained(cats, matcher)):
        batched = _BatchBuilder(graph, matcher, rest).graph()
    return batched


class _BatchBuilder:
    """Build the batched graph.

    `batched_values` has one value per bundle, with the batch dimension outermost; a shared value
    stays as it is.
    """

    def __init__(self, graph: Graph, matcher: BranchMatcher, cats: list[Op]) -> None:
        self.rewriter = Rewriter(graph)
        self.matcher, self.nodes = matcher, matcher.nodes
        self.bundle_index = {bundle: k for k, bundle in enumerate(matcher.nodes)}
        self.cats = set(cats)
        self.replaced = {op for cat in cats for op in matcher.computing_ops(cat)}
        self.batched_values: dict[Bundle, Value] = {}
        self.extracted: set[Value] = set()
        self.returned_bases: set[Value] = set()  # bases of batched values that the caller gets
        self.users = graph.users()
        self.needed_values = {v for v in graph.outputs if v is not None}
        for cat in cats:
            nodes = (node for _, node in matcher.operand_tree(cat.inputs))
            self.needed_values.update(node.value for node in nodes if isinstance(node, SharedValue))
        self.escaping = escaping_values(graph)

    def graph(self) -> Graph | None:
        """Return the batched graph, or None if a separate use of one branch prevents it.

        The use may create a cycle between the branches, or need strides that no slice has.
        """
        for op in self.replaced:
            if self.is_used_elsewhere(op.result) and _is_not_contiguous(op.result):
                return None
        for op in self.rewriter.graph.ops:
            if op in self.cats:
                self.batch_concat(op)
            elif op not in self.replaced:
                self.rewriter.emit(op)
        ops = toposort(self.rewriter.ops)
        return None if ops is None else replace(self.rewriter.graph, ops=ops)

    def batch_concat(self, cat: Op) -> None:
        """Batch the branches of a concat and restore the order of its elements."""
        tree = self.matcher.operand_tree(cat.inputs)
        pending = [bundle for bundle, _ in tree if bundle not in self.batched_values]
        for bundle in sorted(pending, key=self.bundle_index.__getitem__):
            self.batched_values[bundle] = self.value(bundle, cat)
            self.extract_branches(bundle)
        whole, dim, rank = self.batched_values[cat.inputs], cat.int("dim"), len(cat.result.shape)
        if dim:
            dims = (*range(1, dim + 1), 0, *range(dim + 1, rank + 1))
            whole = self.add(cat, "permute", whole, dims=dims)
        separate = cat.result not in self.escaping or self.claim_memory(whole)
        if not separate or _is_not_contiguous(cat.result):
            whole = self.add(cat, "reshape", whole, shape=cat.result.shape)
            self.define(cat, "convert", whole, cat.result, dtype=whole.dtype)
        else:
            self.define(cat, "reshape", whole, cat.result, shape=cat.result.shape)

    def extract_branches(self, bundle: Bundle) -> None:
        """Define the values of single branches that have other users as slices."""
        node = self.nodes[bundle]
        if not isinstance(node, IsomorphicOps) or self.matcher.is_view_of_leaf(bundle):
            return
        whole = self.batched_values[bundle]
        shape, rank = (1, *whole.shape[1:]), len(whole.shape)
        for k, (v, op) in enumerate(zip(bundle, node.ops, strict=True)):
            if v in self.extracted or not self.is_used_elsewhere(v):
                continue
            self.extracted.add(v)
            if v in self.escaping:
                self.claim_memory(whole)
            start = (k, *[0] * (rank - 1))
            attrs: Attrs = {
                "start": start,
                "step": (1,) * rank,
                "shape": shape,
                "dtype": v.dtype,
            }
            self.define(op, "reshape", self.add(op, "slice", whole, **attrs), v, shape=v.shape)

    def is_used_elsewhere(self, v: Value) -> bool:
        """Whether the value is an output, a shared value, or read by an op that is not batched."""
        if v in self.needed_values:
            return True
        users = self.users.get(v, ())
        return any(op not in self.replaced and op not in self.cats for op in users)

    def claim_memory(self, value: Value) -> bool:
        """Mark the memory of a value as returned to the caller; False if it already was."""
        base = self.rewriter.alias_base(value)
        if base in self.returned_bases:
            return False
        self.returned_bases.add(base)
        return True

    def value(self, bundle: Bundle, cat: Op) -> Value:
        """Return the batched value of a bundle; a shared value is returned as it is."""
        match self.nodes[bundle]:
            case SharedValue(value=value):
                return value
            case AdjacentSlices(first=first, dim=dim):
                return self.batch_slices(first, dim, len(bundle))
            case PackedValues(values=values):
                ones = [self.add(cat, "reshape", v, shape=(1, *v.shape)) for v in values]
                return self.add(cat, "cat", *ones, dim=0)
            case IsomorphicOps() as node:
                return self.batch_ops(node, len(bundle))
            case None:
                raise AssertionError("a bundle that does not match")

    def batch_slices(self, first: Op, dim: int, n: int) -> Value:
        """Return `first` and the adjacent slices that follow it along a batch dimension."""
        x, shape = first.inputs[0], first.result.shape
        size = shape[dim]
        hull = (*shape[:dim], n * size, *shape[dim + 1 :])
        start, step = first.dims("start"), first.ints("step")
        if x.shape != hull or any(start) or any(s != 1 for s in step):
            x = self.add(first, "slice", x, start=start, step=step, shape=hull, dtype=x.dtype)
        x = self.add(first, "reshape", x, shape=(*shape[:dim], n, size, *shape[dim + 1 :]))
        if dim == 0:
            return x
        rest = (d for d in range(len(shape) + 1) if d != dim)
        return self.add(first, "permute", x, dims=(dim, *rest))

    def batch_ops(self, node: IsomorphicOps, n: int) -> Value:
        """Return the result of one op over the batch dimension."""
        op = node.ops[0]
        attrs = BATCHED_ATTRS[_attr_rule(op)](op, n)
        operands: list[Operand] = []
        for k, x in enumerate(node.operands):
            if isinstance(x, Scalar):
                operands.append(x)
            elif not isinstance(self.nodes[x], SharedValue):
                operands.append(self.batched_values[x])
            elif op.kind == "take" and k == 0:  # a table that all branches share
                operands.append(self.batched_values[x])
                attrs["dims"] = _shifted_dims(op)
            else:
                operands.append(self.broadcast_shared(op, self.batched_values[x], n))
        return self.add(op, op.kind, *operands, **attrs)

    def broadcast_shared(self, op: Op, x: Value, n: int) -> Value:
        """Broadcast a shared value along the batch dimension."""
        dims = tuple(range(1, len(x.shape) + 1))
        return self.add(op, "broadcast", x, shape=(n, *x.shape), dims=dims)

    def define(self, like: Op, kind: str, x: Value, result: Value, **attrs: Attr) -> None:
        """Emit an op that defines an existing value of the graph."""
        self.rewriter.emit(Op(kind, (x,), (result,), tuple(attrs.items()), like.loc))

    def add(self, like: Op, kind: str, *operands: Operand, **attrs: Attr) -> Value:
        """Emit an op and return its result."""
        op = self.rewriter.make_op(kind, operands, like=like, **attrs)
        self.rewriter.emit(op)
        return op.result


def _is_not_contiguous(v: Value) -> bool:
    """Whether a value has other strides than contiguous ones."""
    return v.strides is not None and v.strides != contiguous_strides(v.shape)


def _attr_rule(op: Op) -> str:
    """Return the row of BATCHED_ATTRS for an op."""
    pattern = OPS[op.kind].pattern
    return pattern.value if pattern in (Pattern.ELEMENTWISE, Pattern.REDUCE) else op.kind


def _elementwise(op: Op, n: int) -> Attrs:
    return dict(op.attrs)


def _broadcast(op: Op, n: int) -> Attrs:
    return {"shape": (n, *op.dims("shape")), "dims": (0, *_shifted_dims(op))}


def _reshape(op: Op, n: int) -> Attrs:
    return {"shape": (n, *op.dims("shape"))}


def _permute(op: Op, n: int) -> Attrs:
    return {"dims": (0, *_shifted_dims(op))}


def _slice(op: Op, n: int) -> Attrs:
    start, step, shape = (0, *op.dims("start")), (1, *op.ints("step")), (n, *op.dims("shape"))
    return {"start": start, "step": step, "shape": shape, "dtype": op.result.dtype}


def _cat(op: Op, n: int) -> Attrs:
    return {"dim": op.int("dim") + 1}


def _pad(op: Op, n: int) -> Attrs:
    return {"low": (0, *op.dims("low")), "high": (0, *op.dims("high"))}


def _take(op: Op, n: int) -> Attrs:
    return {**dict(op.attrs), "dims": (0, *_shifted_dims(op))}


def _reduce(op: Op, n: int) -> Attrs:
    return {**dict(op.attrs), "dims": _shifted_dims(op)}


def _shifted_dims(op: Op) -> tuple[int, ...]:
    """Return the attribute `dims` shifted by the batch dimension; -1 means no dimension."""
    return tuple(d + 1 if d >= 0 else d for d in op.ints("dims"))


BATCHED_ATTRS: dict[str, Callable[[Op, int], Attrs]] = {
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
