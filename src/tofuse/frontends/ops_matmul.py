"""Matrix products, attention and embeddings; results have the operands' type, as in torch."""

from __future__ import annotations

from tofuse.capture.lower.call import Argument
from tofuse.frontends.datatypes import DataType
from tofuse.frontends.elementwise_table import elementwise
from tofuse.frontends.lowering import Lowering, Node, OperandLike, Rule, show_shape
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


def sdpfa_fwd(
    low: Lowering,
    query: OperandLike,
    key: OperandLike,
    value: OperandLike,
    dropout_p: OperandLike | None = None,
    is_causal: OperandLike | None = None,
    scale: OperandLike | None = None,
) -> list[Node]:
    """Flash attention on [batch, heads, length, width]; return output, logsumexp, seed, offset."""
    q, k, v = (low.tensor(t, n) for t, n in ((query, "query"), (key, "key"), (value, "value")))
    _attention_shapes(low, q, k, v)
    p, causal, options = _attention_options(low, dropout_p, is_causal, scale)
    wide = DataType.Double if q.dtype is DataType.Double else DataType.Float
    results = [((*q.shape[:3], v.shape[3]), q.dtype), (q.shape[:3], wide)]
    args = (q.value, k.value, v.value, p, causal)
    outputs = low.call_results(f"aten.{FLASH}.default", args, results, (0, 1), **options)
    return [*outputs, *(low.cast(low.operand(0), DataType.Int) for _ in range(2))]


def sdpfa_bwd(
    low: Lowering,
    grad_output: OperandLike,
    query: OperandLike,
    key: OperandLike,
    value: OperandLike,
    output: OperandLike,
    logsumexp: OperandLike,
    dropout_p: OperandLike | None = None,
    is_causal: OperandLike | None = None,
    philox_seed: OperandLike | None = None,
    philox_offset: OperandLike | None = None,
    scale: OperandLike | None = None,
) -> list[Node]:
    """Return the gradients of query, key and value."""
    given = (grad_output, query, key, value, output, logsumexp)
    names = ("grad_output", "query", "key", "value", "output", "logsumexp")
    tensors = [low.tensor(t, n) for t, n in zip(given, names, strict=True)]
    q, k, v = tensors[1:4]
    _attention_shapes(low, q, k, v)
    p, causal, options = _attention_options(low, dropout_p, is_causal, scale)
    args: tuple[Argument, ...] = (*(t.value for t in tensors), p, causal)
    results = [(t.shape, t.dtype) for t in (q, k, v)]
    target = f"aten.{FLASH}_backward.default"
    return low.call_results(target, args, results, (0, 1, 2), **options)


FLASH = "_scaled_dot_product_flash_attention_for_cpu"


def _attention_shapes(low: Lowering, q: Node, k: Node, v: Node) -> None:
    if not q.rank == k.rank == v.rank == 4:
        raise low.error(
            f"query, key and value must have rank 4, not {q.rank}, {k.rank} and {v.rank}"
        )
    if not q.dtype is k.dtype is v.dtype:
        raise low.error("query, key and value must have the same type")
    for d in (0, 1):
        low.require_equal(q.shape[d], k.shape[d], f"query and key at dimension {d}")
        low.require_equal(k.shape[d], v.shape[d], f"key and value at dimension {d}")
    low.require_equal(q.shape[3], k.shape[3], "query and key at dimension 3")
    low.require_equal(k.shape[2], v.shape[2], "key and value at dimension 2")


def _attention_options(
    low: Lowering, p: OperandLike | None, causal: OperandLike | None, scale: OperandLike | None
) -> tuple[float, bool, dict[str, Argument]]:
    drop, mask, factor = (_constant(low, x) for x in (p, causal, scale))
    if drop:
        raise low.error("dropout inside attention is not supported on the CPU")
    return float(drop or 0.0), bool(mask), {} if factor is None else {"scale": factor}


def _constant(low: Lowering, x: OperandLike | None) -> float | None:
    if x is None:
        return None
    found = getattr(low.operand(x), "value", None)
    if isinstance(found, (bool, int, float)):
        return found
    raise low.error("this option must be a constant")


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
    limit = _constant(low, max_norm)
    if limit is None:
        return rows
    order = _constant(low, norm_type)
    return _limit_norms(low, rows, limit, 2.0 if order is None else float(order))


def _limit_norms(low: Lowering, rows: Node, limit: float, order: float) -> Node:
    """Scale rows to a norm of at most `limit`, as torch's embedding_renorm does."""

    last = rows.rank - 1
    size = elementwise(low, "abs", rows)
    if order == float("inf"):
        norm: OperandLike = reduce("max", low, size, [last], True)
    else:
        total = reduce("sum", low, elementwise(low, "pow", size, order), [last], True)
        norm = elementwise(low, "pow", total, 1.0 / order)
    down = elementwise(low, "truediv", limit, elementwise(low, "add", norm, 1e-7))
    limited = elementwise(low, "mul", rows, elementwise(low, "minimum", down, 1.0))
    return low.cast(limited, rows.dtype)


def _same_type_operands(low: Lowering, arg1: OperandLike, arg2: OperandLike) -> tuple[Node, Node]:
    a, b = low.tensor(arg1, "the first operand"), low.tensor(arg2, "the second operand")
    if a.dtype is not b.dtype:
        raise low.error(
            f"the operands have types {a.dtype.value} and {b.dtype.value}; cast one of them"
        )
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
    "sdpfa_fwd": sdpfa_fwd,
    "sdpfa_bwd": sdpfa_bwd,
    "embedding_fwd": embedding_fwd,
}
