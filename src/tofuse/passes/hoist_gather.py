"""Gather elements before an elementwise computation instead of after it."""

from __future__ import annotations

from tofuse.cost.thresholds import MAX_HOISTED_COST
from tofuse.ir.dims import size_hint
from tofuse.ir.graph import Graph, Op, Operand, Value
from tofuse.ops.table import OPS, Pattern
from tofuse.passes.rewrite import Replacement, Rewriter, RewriteRule, redefine, rewrite


def hoist_gather(graph: Graph) -> Graph:
    """Move takes through cheap elementwise ops, towards values that are in memory anyway."""
    return rewrite(graph, RULES)


def take_of_elementwise(op: Op, rewriter: Rewriter) -> Replacement | None:
    """take(f(x, y), i) = f(take(x, i), take(y, i)), if i has fewer elements and f is cheap

    An operand that does not vary along the selected dimension is broadcast, not taken: in a
    cross-entropy, the maximum and the logarithm of the sum. At least one take must remain, because
    it checks the index.
    """
    x, index = op.inputs
    inner = rewriter.producer.get(x)
    if inner is None or OPS[inner.kind].pattern is not Pattern.ELEMENTWISE:
        return None
    if OPS[inner.kind].cost > MAX_HOISTED_COST:
        return None
    if size_hint(index.type.numel) >= size_hint(x.type.numel):
        return None
    ops = [_gather_operand(y, op, rewriter) for y in inner.operands if isinstance(y, Value)]
    if not any(o.kind == "take" for o in ops):
        return None
    results = iter([o.result for o in ops])
    operands: list[Operand] = [next(results) if isinstance(y, Value) else y for y in inner.operands]
    return (*ops, *redefine(op, inner.kind, *operands, **dict(inner.attrs)))


def _gather_operand(y: Value, op: Op, rewriter: Rewriter) -> Op:
    """Return the op that gives the elements of `y` that the take `op` selects."""
    index, index_dims = op.inputs[1], op.ints("dims")
    broadcast = rewriter.defining_op(y, "broadcast")
    if broadcast is not None:
        dims = tuple(index_dims[d] for d in broadcast.ints("dims"))
        if -1 not in dims and list(dims) == sorted(dims):
            source = broadcast.inputs[0]
            return rewriter.make_op("broadcast", (source,), like=op, shape=index.shape, dims=dims)
    return rewriter.make_op("take", (y, index), like=op, dims=index_dims, wrap=op.attr("wrap"))


RULES: dict[str, tuple[RewriteRule, ...]] = {"take": (take_of_elementwise,)}
