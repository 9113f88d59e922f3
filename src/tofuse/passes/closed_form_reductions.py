"""Sums whose result can be written down: of what does not vary, and of rows with one element."""

from __future__ import annotations

from tofuse.ir.graph import Graph, Op, Operand, Scalar, Value
from tofuse.ir.types import DType
from tofuse.passes.rewrite import Rewrite, Rule, Sweep, rewrite

EXACT = {DType.F32: 2**24, DType.F64: 2**53}  # integers up to here are numbers of the type


def closed_form_reductions(graph: Graph) -> Graph:
    """Replace sums over one dimension; the backward of a cross-entropy is then one pass."""
    return rewrite(graph, RULES)


def closed_sum(op: Op, sweep: Sweep) -> Rewrite | None:
    """sum(x) = n * x where x does not vary, sum(where(i == t, x, 0)) = x where 0 <= t < n

    The sum of two such is the sum of their sums. Adding 0.0 last makes no sum -0.0.
    """
    x, dims = op.inputs[0], op.ints("dims")
    if len(dims) != 1 or x.dtype is not op.result.dtype or x.dtype not in EXACT:
        return None
    writer = _Writer(op, sweep, dims[0])
    total = writer.total(x)
    if total is None or not writer.one_hot:
        return None
    return (*writer.ops, Op("add", (total, Scalar(0.0)), op.results, (), op.loc))


class _Writer:
    """Collects the ops of a sum over dimension `d`; `one_hot` is whether any saves the loop."""

    def __init__(self, op: Op, sweep: Sweep, d: int) -> None:
        self.op, self.sweep, self.d = op, sweep, d
        self.extent = op.inputs[0].shape[d]
        self.ops: list[Op] = []
        self.one_hot = False

    def make(self, kind: str, *operands: Operand) -> Value:
        self.ops.append(self.sweep.make(kind, operands, like=self.op))
        return self.ops[-1].result

    def total(self, x: Value) -> Value | None:
        """The sum of `x`; None where there is no short way."""
        if (both := self.sweep.define(x, "add")) and len(both.inputs) == 2:
            a, b = (self.total(y) for y in both.inputs)
            return self.make("add", a, b) if a and b else None
        if (chosen := self.sweep.define(x, "where")) and chosen.inputs:
            return self._one_hot(chosen)
        constant = self._without(x)
        limit = EXACT[x.dtype]
        if constant is None or not isinstance(self.extent, int) or not 0 < self.extent <= limit:
            return None
        return self.make("mul", constant, Scalar(float(self.extent)))

    def _one_hot(self, chosen: Op) -> Value | None:
        condition, x, other = chosen.operands
        if not isinstance(other, Scalar) or other.value != 0 or not isinstance(x, Value):
            return None
        conjuncts = self._conjuncts(condition)
        places = [t for t in map(self._place, conjuncts) if t is not None]
        if len(places) != 1:
            return None
        rest = [self._without(c) for c in conjuncts if self._place(c) is None]
        value, place = self._without(x), self._without(places[0])
        if value is None or place is None or None in rest:
            return None
        inside = self.make("ge", place, Scalar(0))
        inside = self.make("logical_and", inside, self.make("lt", place, Scalar(self.extent)))
        for c in rest:
            assert c is not None
            inside = self.make("logical_and", inside, c)
        self.one_hot = True
        return self.make("where", inside, value, Scalar(0.0))

    def _conjuncts(self, condition: Operand) -> list[Operand]:
        both = self.sweep.define(condition, "logical_and")
        if both is None:
            return [condition]
        return [c for x in both.operands for c in self._conjuncts(x)]

    def _place(self, condition: Operand) -> Operand | None:
        """t, where the condition is i == t for the index i of the dimension."""
        equal = self.sweep.define(condition, "eq")
        if equal is None:
            return None
        a, b = equal.operands
        return b if self._is_index(a) else a if self._is_index(b) else None

    def _is_index(self, x: Operand) -> bool:
        spread = self.sweep.define(x, "broadcast")
        if spread is None or spread.ints("dims") != (self.d,):
            return False
        count = self.sweep.define(spread.inputs[0], "iota")
        return count is not None and (count.attr("start"), count.attr("step")) == (0, 1)

    def _without(self, x: Operand) -> Value | None:
        """A value that does not vary along the dimension, without it."""
        spread = self.sweep.define(x, "broadcast")
        if spread is None or self.d in spread.ints("dims"):
            return None
        source, shape = spread.inputs[0], self.op.result.shape
        dims = tuple(k - (k > self.d) for k in spread.ints("dims"))
        if source.shape == shape:
            return source
        op = self.sweep.make("broadcast", (source,), like=self.op, shape=shape, dims=dims)
        self.ops.append(op)
        return op.result


RULES: dict[str, tuple[Rule, ...]] = {"sum": (closed_sum,)}
