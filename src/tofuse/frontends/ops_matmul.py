"""Matrix products, attention and embeddings; all keep their operands' type, as torch's do."""

from __future__ import annotations

from tofuse.frontends.datatypes import DataType
from tofuse.frontends.lowering import Given, Lowering, Node, Rule, show
from tofuse.frontends.ops_pointwise import BINARY, UNARY, apply
from tofuse.frontends.ops_reduce import reduction
from tofuse.ir.dims import Dim
from tofuse.ir.graph import Attr, Value
from tofuse.ir.types import DType


def matmul(low: Lowering, arg1: Given, arg2: Given) -> Node:
    """torch.matmul: vectors, matrices and batches of them."""
    a, b = _alike(low, arg1, arg2)
    if not a.rank or not b.rank:
        raise low.fail("0-d operands have no product")
    inner = b.rank - 2 if b.rank > 1 else 0
    low.equal(a.shape[-1], b.shape[inner], "the extents that are summed over")
    batch = _batch(low, a.shape[:-2], b.shape[:-2])
    rows, columns = a.shape[-2:-1], b.shape[-1:] if b.rank > 1 else ()
    shape, operands = (*batch, *rows, *columns), _pair(a.value, b.value)
    both = "$0, $1" if len(operands) == 2 else "$0, $0"
    target = {(2, 2): "mm", (3, 3): "bmm", (2, 1): "mv"}.get((a.rank, b.rank), "matmul")
    if target == "bmm" and a.shape[0] != b.shape[0]:
        target = "matmul"
    return low.node(low.opaque(f"aten.{target}.default", both, operands, shape, a.dtype), a.dtype)


def linear(low: Lowering, arg1: Given, arg2: Given, bias: Given | None = None) -> Node:
    """arg1 @ arg2.T + bias; arg2 is [out, in] or [in]."""
    x, weight = _alike(low, arg1, arg2)
    if not x.rank or weight.rank not in (1, 2):
        raise low.fail(f"a weight of rank {weight.rank} for a tensor of rank {x.rank}")
    low.equal(x.shape[-1], weight.shape[-1], "the extents that are summed over")
    added = None
    if bias is not None:
        added = low.tensor(bias, "bias")
        if added.rank != weight.rank - 1 or added.dtype is not x.dtype:
            raise low.fail(
                f"a {added.dtype.value} bias of rank {added.rank} for a {x.dtype.value} weight "
                f"of rank {weight.rank}"
            )
        if added.rank:
            low.equal(added.shape[0], weight.shape[0], "bias and weight")
    shape = (*x.shape[:-1], *weight.shape[:-1])
    operands = (x.value, weight.value, *([added.value] if added else []))
    distinct = tuple(dict.fromkeys(operands))
    text = ", ".join(f"${distinct.index(v)}" for v in operands)
    return low.node(low.opaque("aten.linear.default", text, distinct, shape, x.dtype), x.dtype)


def sdpfa_fwd(
    low: Lowering,
    query: Given,
    key: Given,
    value: Given,
    dropout_p: Given | None = None,
    is_causal: Given | None = None,
    scale: Given | None = None,
) -> list[Node]:
    """Flash attention on [batch, heads, length, width]: output, logsumexp, seed, offset."""
    q, k, v = (low.tensor(t, n) for t, n in ((query, "query"), (key, "key"), (value, "value")))
    _attention_shapes(low, q, k, v)
    p, causal, options = _attention_options(low, dropout_p, is_causal, scale)
    length = (*q.shape[:2], q.shape[2])
    wide = DataType.Double if q.dtype is DataType.Double else DataType.Float
    results = [((*q.shape[:3], v.shape[3]), q.dtype), (length, wide)]
    distinct = tuple(dict.fromkeys((q.value, k.value, v.value)))
    names = ", ".join(f"${distinct.index(x.value)}" for x in (q, k, v))
    target = f"aten.{FLASH}.default"
    made = low.opaques(target, f"{names}, {p}, {causal}{options}", distinct, results, (0, 1))
    output, total = low.node(made[0], q.dtype), low.node(made[1], wide)
    zero = [low.node(low.value_of(low.operand(0), DataType.Int), DataType.Int) for _ in range(2)]
    return [output, total, *zero]


def sdpfa_bwd(
    low: Lowering,
    grad_output: Given,
    query: Given,
    key: Given,
    value: Given,
    output: Given,
    logsumexp: Given,
    dropout_p: Given | None = None,
    is_causal: Given | None = None,
    philox_seed: Given | None = None,
    philox_offset: Given | None = None,
    scale: Given | None = None,
) -> list[Node]:
    """The gradients of query, key and value."""
    given = (grad_output, query, key, value, output, logsumexp)
    names = ("grad_output", "query", "key", "value", "output", "logsumexp")
    tensors = [low.tensor(t, n) for t, n in zip(given, names, strict=True)]
    q, k, v = tensors[1:4]
    _attention_shapes(low, q, k, v)
    p, causal, options = _attention_options(low, dropout_p, is_causal, scale)
    distinct = tuple(dict.fromkeys(t.value for t in tensors))
    text = ", ".join(f"${distinct.index(t.value)}" for t in tensors)
    results = [(t.shape, t.dtype) for t in (q, k, v)]
    target = f"aten.{FLASH}_backward.default"
    made = low.opaques(target, f"{text}, {p}, {causal}{options}", distinct, results, (0, 1, 2))
    return [low.node(g, t.dtype) for g, t in zip(made, (q, k, v), strict=True)]


FLASH = "_scaled_dot_product_flash_attention_for_cpu"


def _attention_shapes(low: Lowering, q: Node, k: Node, v: Node) -> None:
    if not q.rank == k.rank == v.rank == 4:
        raise low.fail(f"query, key and value have ranks {q.rank}, {k.rank} and {v.rank}, not 4")
    if not q.dtype is k.dtype is v.dtype:
        raise low.fail("query, key and value differ in type")
    for d in (0, 1):
        low.equal(q.shape[d], k.shape[d], f"query and key at dimension {d}")
        low.equal(k.shape[d], v.shape[d], f"key and value at dimension {d}")
    low.equal(q.shape[3], k.shape[3], "query and key at dimension 3")
    low.equal(k.shape[2], v.shape[2], "key and value at dimension 2")


def _attention_options(
    low: Lowering, p: Given | None, causal: Given | None, scale: Given | None
) -> tuple[float, bool, str]:
    drop, mask, factor = (_constant(low, x) for x in (p, causal, scale))
    if drop:
        raise low.fail("dropout inside attention is not supported on the CPU")
    return float(drop or 0.0), bool(mask), "" if factor is None else f", scale={factor!r}"


def _constant(low: Lowering, x: Given | None) -> float | None:
    if x is None:
        return None
    found = getattr(low.operand(x), "value", None)
    if isinstance(found, (bool, int, float)):
        return found
    raise low.fail("an option of attention must be a constant")


def embedding_fwd(
    low: Lowering,
    input: Given,
    weight: Given,
    padding_idx: Given | None = None,
    max_norm: Given | None = None,
    norm_type: Given | None = None,
    scale_grad_by_freq: Given | None = None,
    sparse: Given | None = None,
) -> Node:
    """Rows of the weight; with `max_norm` those that are longer are scaled down to it."""
    index, table = low.tensor(input, "input"), low.tensor(weight, "weight")
    if not index.dtype.is_int or table.rank != 2:
        raise low.fail("it takes integers and a weight of rank 2")
    shape: tuple[Dim, ...] = (*index.shape, table.shape[1])
    if table.dtype.ir is DType.OTHER or 0 in table.shape:
        raise low.fail(
            f"it does not take a {table.dtype.value} weight of shape {show(table.shape)}"
        )
    last = index.rank
    wide = low.build.broadcast(index.value, shape, tuple(range(last)))
    attrs: dict[str, Attr] = {"dims": (-1, last), "wrap": False}
    rows = low.node(low.build.emit("take", (table.value, wide), attrs), table.dtype)
    limit = _constant(low, max_norm)
    if limit is None:
        return rows
    order = _constant(low, norm_type)
    return _limited(low, rows, limit, 2.0 if order is None else float(order))


def _limited(low: Lowering, rows: Node, limit: float, order: float) -> Node:
    """Rows scaled to a norm of at most `limit`, as torch's embedding_renorm does."""

    def op(name: str, a: Given, b: Given) -> Given:
        return apply(low, name, BINARY[name], a, b)

    last = rows.rank - 1
    size = apply(low, "abs", UNARY["abs"], rows)
    if order == float("inf"):
        norm: Given = reduction("max")(low, size, [last], True)  # type: ignore[assignment]
    else:
        total = reduction("sum")(low, op("pow", size, order), [last], True)
        norm = op("pow", total, 1.0 / order)  # type: ignore[arg-type]  # one tensor
    down = op("truediv", limit, op("add", norm, 1e-7))
    factor = op("minimum", down, 1.0)
    made = op("mul", rows, factor)
    assert isinstance(made, Node)
    return low.node(low.convert(made.value, made.dtype, rows.dtype), rows.dtype)


def _alike(low: Lowering, arg1: Given, arg2: Given) -> tuple[Node, Node]:
    a, b = low.tensor(arg1, "the first operand"), low.tensor(arg2, "the second operand")
    if a.dtype is not b.dtype:
        raise low.fail(f"operands of type {a.dtype.value} and {b.dtype.value}; cast one of them")
    return a, b


def _pair(a: Value, b: Value) -> tuple[Value, ...]:
    return (a,) if a is b else (a, b)


def _batch(low: Lowering, a: tuple[Dim, ...], b: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Batch dimensions broadcast, aligned on the right."""
    rank = max(len(a), len(b))
    left, right = ((1,) * (rank - len(s)) + s for s in (a, b))
    for x, y in zip(left, right, strict=True):
        if 1 not in (x, y):
            low.equal(x, y, "the batch extents")
    pairs = zip(map(low.known, left), map(low.known, right), strict=True)
    return tuple(y if x == 1 else x for x, y in pairs)


MATMUL: dict[str, Rule] = {
    "matmul": matmul,
    "linear": linear,
    "sdpfa_fwd": sdpfa_fwd,
    "sdpfa_bwd": sdpfa_bwd,
    "embedding_fwd": embedding_fwd,
}
