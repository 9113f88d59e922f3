"""Run isomorphic branches as one computation with an additional batch dimension."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tofuse.analysis.isomorphism import (
    Branches,
    Bundle,
    Equal,
    Shared,
    Sliced,
    SliceRead,
    Stacked,
)
from tofuse.ir.graph import Attr, Graph, Op, Operand, Scalar, Value
from tofuse.ops.result_types import slice_attrs
from tofuse.passes.batch.branch_match import (
    ConcatBranches,
    Targets,
    self_contained,
    unbatched_operands,
)
from tofuse.passes.batched_attrs import Attrs, batched_attrs, shifted_dims
from tofuse.passes.rewrite import Rewriter
from tofuse.passes.toposort import toposort


def batch_branches(graph: Graph) -> Graph:
    """cat(f(x[0:m]), f(x[m:2m]), ...) = reshape(f(reshape(x))), if the branches are isomorphic

    The reshape of x adds a leading batch dimension. Other users of one branch read a slice of the
    batched value. If not all branches match, ranges of consecutive matching branches are batched.
    """
    concats = ConcatBranches(graph)
    targets = concats.targets()
    batched = _BatchBuilder(concats, targets).graph() if targets else None
    if batched is None and (rest := self_contained(targets, concats)):
        batched = _BatchBuilder(concats, rest).graph()
    return graph if batched is None else batched


class _BatchBuilder:
    """Build the batched graph.

    `batched_values` has one value per bundle, with the batch dimension outermost; a shared value
    stays as it is.
    """

    def __init__(self, concats: ConcatBranches, targets: Targets) -> None:
        self.concats, self.targets = concats, targets
        self.rewriter = Rewriter(concats.graph)
        branches = [x for operands in targets.values() for x in operands if isinstance(x, Branches)]
        self.replaced = {op for b in branches for op in concats.computing_ops(b)}
        self.batched_values: dict[Bundle[Value], Value] = {}
        self.extracted: set[Value] = set()
        self.returned_bases: set[Value] = set()  # bases of batched values that the caller gets
        self.needed_values = concats.outputs | unbatched_operands(targets)
        self.needed_values.update(s.node for b in branches for s in b.bundles(Shared).values())

    def graph(self) -> Graph | None:
        """Return the batched graph, or None if a separate use of one branch prevents it.

        The use may create a cycle between the branches, or need strides that no slice has.
        """
        for op in self.replaced:
            if self.is_used_elsewhere(op.result) and not op.result.is_row_major:
                return None
        for op in self.rewriter.graph.ops:
            if op in self.targets:
                self.batch_concat(op)
            elif op not in self.replaced:
                self.rewriter.emit(op)
        ops = toposort(self.rewriter.ops)
        return None if ops is None else replace(self.rewriter.graph, ops=ops)

    def batch_concat(self, cat: Op) -> None:
        """Batch the branches of a concat and restore the order of its elements."""
        first, *others = self.targets[cat]
        if others:
            operands = tuple(self.batched_operand(cat, x) for x in (first, *others))
            self.rewriter.emit(replace(cat, operands=operands))
            return
        assert isinstance(first, Branches)
        whole = self.batch(cat, first)
        escapes = cat.result in self.concats.escaping
        permuted = escapes and cat.int("dim") != 0  # a view; the caller expects a new tensor
        separate = not escapes or self.claim_memory(whole)
        if permuted or not separate or not cat.result.is_row_major:
            whole = self.add(cat, "reshape", whole, shape=cat.result.shape)
            self.define(cat, "convert", whole, cat.result, dtype=whole.dtype)
        else:
            self.define(cat, "reshape", whole, cat.result, shape=cat.result.shape)

    def batched_operand(self, cat: Op, x: Value | Branches[Value]) -> Value:
        """Return an operand of a concat whose operands are batched only in part."""
        if isinstance(x, Value):
            return x
        shape, dim = x.root[0].shape, cat.int("dim")
        joined = (*shape[:dim], len(x.root) * shape[dim], *shape[dim + 1 :])
        return self.add(cat, "reshape", self.batch(cat, x), shape=joined)

    def batch(self, cat: Op, branches: Branches[Value]) -> Value:
        """Return the results of the branches, with the batch dimension before the concat's."""
        for bundle in branches.roles:
            if bundle not in self.batched_values:
                self.batched_values[bundle] = self.value(bundle, branches, cat)
                self.extract_branches(bundle, branches)
        whole, dim = self.batched_values[branches.root], cat.int("dim")
        if dim == 0:
            return whole
        dims = (*range(1, dim + 1), 0, *range(dim + 1, len(whole.shape)))
        return self.add(cat, "permute", whole, dims=dims)

    def extract_branches(self, bundle: Bundle[Value], branches: Branches[Value]) -> None:
        """Define the values of single branches that have other users as slices."""
        if self.concats.is_view_of_leaf(branches, bundle):
            return
        whole = self.batched_values[bundle]
        for k, v in enumerate(bundle):
            if v in self.extracted or not self.is_used_elsewhere(v):
                continue
            self.extracted.add(v)
            if v in self.concats.escaping:
                self.claim_memory(whole)
            op, attrs = self.concats.producers[v], slice_attrs(whole, 0, k, 1)
            self.define(op, "reshape", self.add(op, "slice", whole, **attrs), v, shape=v.shape)

    def is_used_elsewhere(self, v: Value) -> bool:
        """Whether the value is an output, a shared value, or read by an op that is not batched."""
        if v in self.needed_values:
            return True
        users = self.concats.users.get(v, ())
        return any(op not in self.replaced and op not in self.targets for op in users)

    def claim_memory(self, value: Value) -> bool:
        """Mark the memory of a value as returned to the caller; False if it already was."""
        base = self.rewriter.base(value)
        if base in self.returned_bases:
            return False
        self.returned_bases.add(base)
        return True

    def value(self, bundle: Bundle[Value], branches: Branches[Value], cat: Op) -> Value:
        """Return the batched value of a bundle; a shared value is returned as it is."""
        op = self.concats.producers.get(bundle[0], cat)
        match branches.roles[bundle]:
            case Shared(node=value):
                return value
            case Sliced(first=first, dim=dim):
                return self.batch_slices(op, first, dim, len(bundle))
            case Stacked(nodes=values):
                ones = [self.add(cat, "reshape", v, shape=(1, *v.shape)) for v in values]
                return self.add(cat, "cat", *ones, dim=0)
            case Equal(operands=operands):
                shared = branches.bundles(Shared)
                inputs = ((self.batched_values[x], x in shared) for x in operands)
                return self.batch_op(op, len(bundle), inputs)

    def batch_slices(self, op: Op, first: SliceRead[Value], dim: int, n: int) -> Value:
        """Return the adjacent slices along a batch dimension."""
        x, shape = first.source, first.size
        size = shape[dim]
        hull = (*shape[:dim], n * size, *shape[dim + 1 :])
        if x.shape != hull or any(first.start) or any(s != 1 for s in first.step):
            attrs: Attrs = {"start": first.start, "step": first.step, "shape": hull}
            x = self.add(op, "slice", x, **attrs, dtype=x.dtype)
        x = self.add(op, "reshape", x, shape=(*shape[:dim], n, size, *shape[dim + 1 :]))
        if dim == 0:
            return x
        rest = (d for d in range(len(shape) + 1) if d != dim)
        return self.add(op, "permute", x, dims=(dim, *rest))

    def batch_op(self, op: Op, n: int, operands: Iterator[tuple[Value, bool]]) -> Value:
        """Return the result of one op over the batch dimension.

        `operands` are values with a batch dimension, or without it and shared by all branches.
        """
        attrs, inputs = batched_attrs(op, n), list[Operand]()
        for x in op.operands:
            if isinstance(x, Scalar):
                inputs.append(x)
                continue
            value, shared = next(operands)
            if shared and op.kind == "take" and not inputs:  # a table that all branches share
                attrs["dims"] = shifted_dims(op)
            elif shared:
                dims = tuple(range(1, len(value.shape) + 1))
                value = self.add(op, "broadcast", value, shape=(n, *value.shape), dims=dims)
            inputs.append(value)
        return self.add(op, op.kind, *inputs, **attrs)

    def define(self, like: Op, kind: str, x: Value, result: Value, **attrs: Attr) -> None:
        """Emit an op that defines an existing value of the graph."""
        self.rewriter.emit(Op(kind, (x,), (result,), tuple(attrs.items()), like.loc))

    def add(self, like: Op, kind: str, *operands: Operand, **attrs: Attr) -> Value:
        """Emit an op and return its result."""
        op = self.rewriter.make_op(kind, operands, like=like, **attrs)
        self.rewriter.emit(op)
        return op.result
