"""Gathers few elements before computing on them, instead of computing on all and gathering few."""

from __future__ import annotations

from tofuse.ir.dims import hint
from tofuse.ir.graph import Graph, Op, Operand, Value
from tofuse.ops.table import Pattern, opdef
from tofuse.passes.rewrite import Rewrite, Rule, Sweep, rewrite

CHEAP = 4.0  # additions per element that are worth doing again


def hoist_gather(graph: Graph) -> Graph:
    """Move takes through cheap elementwise ops, towards tensors that lie in memory anyway."""
    return rewrite(graph, RULES)


def take_of_elementwise(op: Op, sweep: Sweep) -> Rewrite | None:
    """take(f(x, y), i) = f(take(x, i), take(y, i)), if i is smaller and one take remains

    What does not vary along the selected dimension is not taken but broadcast: in a
    cross-entropy, the maximum and the logarithm of the sum.
    """
    x, index = op.inputs
    inner = sweep.producer.get(x)
    if inner is None or opdef(inner.kind).pattern is not Pattern.ELEMENTWISE:
        return None
    if opdef(inner.kind).cost > CHEAP or hint(index.type.numel) >= hint(x.type.numel):
        return None
    ops = [_picked(y, op, sweep) for y in inner.operands if isinstance(y, Value)]
    if not any(o.kind == "take" for o in ops):
        return None
    results = iter([o.result for o in ops])
    operands: list[Operand] = [next(results) if isinstance(y, Value) else y for y in inner.operands]
    return (*ops, Op(inner.kind, tuple(operands), op.results, inner.attrs, op.loc))


def _picked(y: Value, op: Op, sweep: Sweep) -> Op:
    """The elements of `y` that the take `op` would pick."""
    index, follows = op.inputs[1], op.ints("dims")
    spread = sweep.define(y, "broadcast")
    if spread is not None:
        dims = tuple(follows[d] for d in spread.ints("dims"))
        if -1 not in dims and list(dims) == sorted(dims):
            source = spread.inputs[0]
            return sweep.make("broadcast", (source,), like=op, shape=index.shape, dims=dims)
    return sweep.make("take", (y, index), like=op, dims=follows, wrap=op.attr("wrap"))


RULES: dict[str, tuple[Rule, ...]] = {"take": (take_of_elementwise,)}
