"""Rewrite matrix-vector and outer products to elementwise products and sums, which fuse."""

from __future__ import annotations

from tofuse.cost.thresholds import MIN_SUMMED_PRODUCT_ROWS_PER_COLUMN
from tofuse.ir.dims import Dim, size_hint
from tofuse.ir.graph import Graph, Op, Value
from tofuse.passes.product_ops import PRODUCT_OPS, ProductBuilder, is_float_product
from tofuse.passes.rewrite import Replacement, Rewriter, RewriteRule, rewrite


def matvec(graph: Graph) -> Graph:
    """Rewrite products with one column to sums, and outer products to multiplications."""
    return rewrite(graph, RULES)


def matrix_vector_product(op: Op, rewriter: Rewriter) -> Replacement | None:
    """x[M,K] @ w[K,1] = sum(x * w, k); x[M,1] @ w[1,N] = x * w

    x[1,K] @ w[K,N] = sum(x * w, k), if K >= MIN_SUMMED_PRODUCT_ROWS_PER_COLUMN * N. Each may be
    batched, have an addend, or have a vector w[K].
    """
    operands = op.argument_tensors
    if op.attr("target") not in PRODUCT_OPS or operands is None:
        return None
    *addend, x, w = operands
    if not is_float_product(op, operands) or not _shapes_match(x, w, op.result):
        return None
    builder = _MatvecBuilder(op, rewriter)
    if len(w.shape) == 1:
        total = builder.reduce_row(builder.widen(x), builder.widen(w))
    elif x.shape[-1] == 1:
        total = builder.outer(builder.widen(x), builder.widen(w))
    elif w.shape[-1] == 1:
        column = builder.widen(builder.add("reshape", w, shape=w.shape[:-1]))
        total = builder.reduce_row(builder.widen(x), column)
    elif x.shape[-2] == 1 and _is_weight_gradient(w):
        row = builder.widen(builder.add("reshape", x, shape=(*x.shape[:-2], x.shape[-1])))
        w = builder.widen(w)
        total = builder.reduce(builder.spread(row, w.shape, -1), w, len(w.shape) - 2)
    else:
        return None
    if total.shape != op.result.shape:
        total = builder.add("reshape", total, shape=op.result.shape)
    builder.finish(total, addend, op.result)
    return builder.replacement()


class _MatvecBuilder(ProductBuilder):
    """Collect the ops that replace a product with one column, or an outer product."""

    def reduce_row(self, x: Value, w: Value) -> Value:
        """Return sum(x[..., M, K] * w[..., K], k)."""
        w = w if x.shape == w.shape else self.spread(w, x.shape, -2)
        return self.reduce(x, w, len(x.shape) - 1)

    def reduce(self, x: Value, w: Value, dim: int) -> Value:
        """Return the sum of x * w over a dimension."""
        return self.add("sum", self.add("mul", x, w), dims=(dim,), dtype=self.dtype)

    def outer(self, x: Value, w: Value) -> Value:
        """Return x[..., M, 1] * w[..., 1, N]."""
        shape = (*x.shape[:-1], w.shape[-1])
        column = self.add("reshape", x, shape=x.shape[:-1])
        row = self.add("reshape", w, shape=(*w.shape[:-2], w.shape[-1]))
        return self.add("mul", self.spread(column, shape, -1), self.spread(row, shape, -2))

    def spread(self, x: Value, shape: tuple[Dim, ...], dim: int) -> Value:
        """Broadcast a value to `shape` along one new dimension, counted from the end."""
        dims = tuple(d for d in range(len(shape)) if d != len(shape) + dim)
        return self.add("broadcast", x, shape=shape, dims=dims)


def _shapes_match(x: Value, w: Value, result: Value) -> bool:
    """Whether the sizes are known to match; symbolic sizes may only match by a guard."""
    columns = () if len(w.shape) == 1 else w.shape[-1:]
    inner = w.shape[0] if len(w.shape) == 1 else w.shape[-2]
    batched = len(w.shape) < 3 or x.shape[:-2] == w.shape[:-2]
    return batched and x.shape[-1] == inner and (*x.shape[:-1], *columns) == result.shape


def _is_weight_gradient(w: Value) -> bool:
    """Whether x[1,K] @ w[K,N] is likely a weight's gradient, not a layer applied to one row."""
    k, n = w.shape[-2:]
    return not isinstance(k, int) or k >= MIN_SUMMED_PRODUCT_ROWS_PER_COLUMN * size_hint(n)


RULES: dict[str, tuple[RewriteRule, ...]] = {"opaque": (matrix_vector_product,)}
