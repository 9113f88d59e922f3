"""Matrix products and embeddings; results have the operands' type, as in torch."""

from __future__ import annotations

import math

from tofuse.frontends.datatypes import DataType
from tofuse.frontends.elementwise_table import elementwise
from tofuse.frontends.items import Item, Node, Number, OperandLike, Rule, is_scalar, show_shape
from tofuse.frontends.lowering import Lowering
from tofuse.frontends.ops_pointwise import where
from tofuse.frontends.ops_reduce import reduce
from tofuse.ir.dims import Dim
from tofuse.ir.graph import Attr
from tofuse.ir.types import DType


def matmul(low: Lowering, arg1: OperandLike, arg2: OperandLike) -> Node:
    """Multiply vectors, matrices and batches of them, as torch.matmul."""
    a, b = _same_type_operands(low, arg1, arg2)
    if not a.rank or not b.rank:
        raise low.error("the operands must not be 0-d")
    inner = b.rank - 2 if b.rank > 1 else 0
    low.require_equal(a.shape[-1], b.shape[inner], "the sizes of the summed dimension")
    batch = _broadcast_batch(low, a.shape[:-2], b.shape[:-2])
    rows, columns = a.shape[-2:-1], b.shape[-1:] if b.rank > 1 else ()
    shape, operands = (*batch, *rows, *columns), (a.value, b.value)
    target = {(2, 2): "mm", (3, 3): "bmm", (2, 1): "mv"}.get((a.rank, b.rank), "matmul")
    if target == "bmm" and a.shape[0] != b.shape[0]:
        target = "matmul"
    return low.call(f"aten.{target}.default", operands, shape, a.dtype)


def linear(
    low: Lowering, arg1: OperandLike, arg2: OperandLike, bias: OperandLike | None = None
) -> Node:
    """Return arg1 @ arg2.T + bias, with arg2 of shape [out, in] or [in]."""
    x, weight = _same_type_operands(low, arg1, arg2)
    if not x.rank or weight.rank not in (1, 2):
        raise low.error(
            "the tensor must have at least rank 1 and the weight rank 1 or 2, "
            f"not {x.rank} and {weight.rank}"
        )
    low.require_equal(x.shape[-1], weight.shape[-1], "the sizes of the summed dimension")
    operands = [x, weight]
    if bias is not None:
        bias_node = low.tensor(bias, "bias")
        operands.append(bias_node)
        if bias_node.rank != weight.rank - 1 or bias_node.dtype is not x.dtype:
            raise low.error(
                f"the bias must be {x.dtype.value} of rank {weight.rank - 1}, "
                f"not {bias_node.dtype.value} of rank {bias_node.rank}"
            )
        if bias_node.rank:
            low.require_equal(bias_node.shape[0], weight.shape[0], "bias and weight")
    shape = (*x.shape[:-1], *weight.shape[:-1])
    return low.call("aten.linear.default", [t.value for t in operands], shape, x.dtype)


def embedding_fwd(
    low: Lowering,
    input: OperandLike,
    weight: OperandLike,
    padding_idx: OperandLike | None = None,
    max_norm: OperandLike | None = None,
    norm_type: OperandLike | None = None,
    scale_grad_by_freq: OperandLike | None = None,
    sparse: OperandLike | None = None,
) -> Node:
    """Return rows of the weight; rows with a norm above `max_norm` are scaled down to it."""
    index, table = low.tensor(input, "input"), low.tensor(weight, "weight")
    if not index.dtype.is_int or table.rank != 2:
        raise low.error("the input must have an integer type and the weight rank 2")
    shape: tuple[Dim, ...] = (*index.shape, table.shape[1])
    if table.dtype.ir is DType.OTHER or 0 in table.shape:
        raise low.error(
            f"it does not take a {table.dtype.value} weight of shape {show_shape(table.shape)}"
        )
    last = index.rank
    wide = low.builder.broadcast(index.value, shape, tuple(range(last)))
    attrs: dict[str, Attr] = {"dims": (-1, last), "wrap": False}
    rows = Node(low.builder.emit("take", (table.value, wide), attrs), table.dtype)
    if max_norm is None:
        return rows
    limit, order = (low.operand(x) for x in (max_norm, 2.0 if norm_type is None else norm_type))
    if not is_scalar(limit) or not is_scalar(order) or not table.dtype.is_float:
        raise low.error("max_norm and norm_type must be numbers, and the weight of floats")
    return _limit_norms(low, rows, limit, order)


def _limit_norms(low: Lowering, rows: Node, limit: OperandLike, order: Item) -> Node:
    """Scale rows to a norm of at most `limit`, as torch's embedding_renorm does."""
    dims, size = [rows.rank - 1], elementwise(low, "abs", rows)
    known = order.value if isinstance(order, Number) else None
    if known == math.inf:
        norm: OperandLike = reduce("max", low, size, dims, True)
    else:
        total = reduce("sum", low, elementwise(low, "pow", size, order), dims, True)
        norm = elementwise(low, "pow", total, elementwise(low, "truediv", 1.0, order))
    if known is None:  # the order is an input, and may be infinite
        is_infinite = elementwise(low, "eq", order, math.inf)
        norm = where(low, is_infinite, reduce("max", low, size, dims, True), norm)
    down = elementwise(low, "truediv", limit, elementwise(low, "add", norm, 1e-7))
    limited = elementwise(low, "mul", rows, elementwise(low, "minimum", down, 1.0))
    return low.cast(limited, rows.dtype)


def _same_type_operands(low: Lowering, arg1: OperandLike, arg2: OperandLike) -> tuple[Node, Node]:
    a, b = low.tensor(arg1, "the first operand"), low.tensor(arg2, "the second operand")
    if a.dtype is not b.dtype:
        raise low.error(
            f"the operands have types {a.dtype.value} and {b.dtype.value}; cast one of them"
        )
    if a.dtype is DataType.Bool:
        raise low.error("it does not take Bool operands")
    return a, b


def _broadcast_batch(low: Lowering, a: tuple[Dim, ...], b: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Broadcast batch dimensions, aligned on the right."""
    rank = max(len(a), len(b))
    left, right = ((1,) * (rank - len(s)) + s for s in (a, b))
    for x, y in zip(left, right, strict=True):
        if 1 not in (x, y):
            low.require_equal(x, y, "the batch sizes")
    return tuple(y if x == 1 else x for x, y in zip(left, right, strict=True))


MATMUL: dict[str, Rule] = {
    "matmul": matmul,
    "linear": linear,
    "embedding_fwd": embedding_fwd,
}
