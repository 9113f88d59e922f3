"""Replace sums of loop-invariant values and of one-hot rows by closed forms."""

from __future__ import annotations

from tofuse.ir.graph import Graph, Op, Operand, Scalar, Value
from tofuse.ir.types import DType
from tofuse.passes.rewrite import OpBuilder, Replacement, Rewriter, RewriteRule, redefine, rewrite

MAX_EXACT_INT = {DType.F32: 2**24, DType.F64: 2**53}  # every integer up to here is representable


def closed_form_reductions(graph: Graph) -> Graph:
    """Replace sums over one dimension; makes the backward of a cross-entropy a single pass."""
    return rewrite(graph, RULES)


def closed_form_sum(op: Op, rewriter: Rewriter) -> Replacement | None:
    """sum(where(i == t, x, 0)) = where(0 <= t < n, x, 0) + 0.0, if t and x do not vary along i

    sum(x) = n * x, if x does not vary; sum(a + b) = sum(a) + sum(b). Applies only if at least one
    term is one-hot. The final + 0.0 turns -0.0 into 0.0, as a sum does.
    """
    x, dims = op.inputs[0], op.ints("dims")
    if len(dims) != 1 or x.dtype is not op.result.dtype or x.dtype not in MAX_EXACT_INT:
        return None
    builder = _SumBuilder(op, rewriter, dims[0])
    closed_form = builder.closed_form(x)
    if closed_form is None or not builder.has_one_hot:
        return None
    return (*builder.ops, *redefine(op, "add", closed_form, Scalar(0.0)))


class _SumBuilder(OpBuilder):
    """Collect the ops of a sum over dimension `dim`; `has_one_hot` is set by a one-hot term."""

    def __init__(self, op: Op, rewriter: Rewriter, dim: int) -> None:
        super().__init__(op, rewriter)
        self.dim, self.extent = dim, op.inputs[0].shape[dim]
        self.has_one_hot = False

    def closed_form(self, x: Value) -> Value | None:
        """Return the sum of `x`, or None if it has no closed form."""
        if (add := self.rewriter.defining_op(x, "add")) and len(add.inputs) == 2:
            a, b = (self.closed_form(y) for y in add.inputs)
            return self.add("add", a, b) if a and b else None
        if (where := self.rewriter.defining_op(x, "where")) and where.inputs:
            return self._one_hot_sum(where)
        constant = self._drop_dim(x)
        limit = MAX_EXACT_INT[x.dtype]
        if constant is None or not isinstance(self.extent, int) or not 0 < self.extent <= limit:
            return None
        return self.add("mul", constant, Scalar(float(self.extent)))

    def _one_hot_sum(self, where: Op) -> Value | None:
        """Return the sum of where(i == t and rest, x, 0)."""
        condition, x, other = where.operands
        if not isinstance(other, Scalar) or other.value != 0 or not isinstance(x, Value):
            return None
        conjuncts = self._conjuncts(condition)
        indices = [t for t in map(self._one_hot_index, conjuncts) if t is not None]
        if len(indices) != 1:
            return None
        rest = [self._drop_dim(c) for c in conjuncts if self._one_hot_index(c) is None]
        value, index = self._drop_dim(x), self._drop_dim(indices[0])
        if value is None or index is None or None in rest:
            return None
        selected = self.add("ge", index, Scalar(0))
        selected = self.add("logical_and", selected, self.add("lt", index, Scalar(self.extent)))
        for c in rest:
            assert c is not None
            selected = self.add("logical_and", selected, c)
        self.has_one_hot = True
        return self.add("where", selected, value, Scalar(0.0))

    def _conjuncts(self, condition: Operand) -> list[Operand]:
        conjunction = self.rewriter.defining_op(condition, "logical_and")
        if conjunction is None:
            return [condition]
        return [c for x in conjunction.operands for c in self._conjuncts(x)]

    def _one_hot_index(self, condition: Operand) -> Operand | None:
        """Return t if the condition is i == t for the index i of the dimension."""
        equal = self.rewriter.defining_op(condition, "eq")
        if equal is None:
            return None
        a, b = equal.operands
        return b if self._is_index(a) else a if self._is_index(b) else None

    def _is_index(self, x: Operand) -> bool:
        broadcast = self.rewriter.defining_op(x, "broadcast")
        if broadcast is None or broadcast.ints("dims") != (self.dim,):
            return False
        iota = self.rewriter.defining_op(broadcast.inputs[0], "iota")
        return iota is not None and (iota.attr("start"), iota.attr("step")) == (0, 1)

    def _drop_dim(self, x: Operand) -> Value | None:
        """Return a value without the dimension, or None if it varies along it."""
        broadcast = self.rewriter.defining_op(x, "broadcast")
        if broadcast is None or self.dim in broadcast.ints("dims"):
            return None
        source, shape = broadcast.inputs[0], self.op.result.shape
        dims = tuple(k - (k > self.dim) for k in broadcast.ints("dims"))
        if source.shape == shape:
            return source
        return self.add("broadcast", source, shape=shape, dims=dims)


RULES: dict[str, tuple[RewriteRule, ...]] = {"sum": (closed_form_sum,)}
