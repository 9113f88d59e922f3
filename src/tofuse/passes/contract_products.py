"""Let kernels compute products that PyTorch's library computes otherwise, so that they fuse."""

from __future__ import annotations

from collections.abc import Set
from functools import partial

from tofuse.ir.graph import Graph, Op, Value
from tofuse.ir.types import DType
from tofuse.passes.product_ops import PRODUCT_OPS, ProductBuilder, is_float_product
from tofuse.passes.rewrite import Replacement, Rewriter, rewrite

CONTRACTED_DTYPES = (DType.F32, DType.F16, DType.BF16)


def contract_products(graph: Graph, chosen: Set[Value], *, widen: bool = False) -> Graph:
    """Replace the products whose results are `chosen` by contractions, which fuse.

    `widen`: factors are not rounded to half precision, as those of matrix instructions are.
    """
    if not chosen:
        return graph
    rule = partial(product_of_matrices, chosen=chosen, widen=widen)
    return rewrite(graph, {"opaque": (rule,)})


def is_contractible(op: Op) -> bool:
    """Whether a library call is a product of matrices that a contraction can replace."""
    operands = op.argument_tensors if op.attr("target") in PRODUCT_OPS else None
    if operands is None or not is_float_product(op, operands):
        return False
    *_, x, w = operands
    shapes_match = x.shape[:-2] == w.shape[:-2] and x.shape[-1:] == w.shape[-2:-1]
    return op.result.dtype in CONTRACTED_DTYPES and len(w.shape) >= 2 and shapes_match


def product_of_matrices(
    op: Op, rewriter: Rewriter, *, chosen: Set[Value], widen: bool
) -> Replacement | None:
    """x[..., M, K] @ w[..., K, N] = contract(x, w); with an addend, add(contract(x, w), addend)

    The sum of both is rounded once, as by PyTorch's operator.
    """
    if chosen.isdisjoint(op.results) or not is_contractible(op):
        return None
    *addend, x, w = op.argument_tensors or ()
    builder = ProductBuilder(op, rewriter)
    if widen:
        x, w = builder.widen(x), builder.widen(w)
    unrounded = addend or widen
    total = builder.add("contract", x, w, dtype=builder.dtype if unrounded else op.result.dtype)
    builder.finish(total, addend, op.result)
    return builder.replacement()
