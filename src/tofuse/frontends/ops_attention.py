"""Attention: PyTorch's flash attention, or products and a softmax for options that it lacks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tofuse.capture.lower.call import Argument
from tofuse.frontends.datatypes import DataType
from tofuse.frontends.dim_order import has_contiguous_rows, with_dim_order
from tofuse.frontends.elementwise_table import (
    broadcast_shape,
    broadcast_to,
    elementwise,
    elementwise_node,
    of_rank,
)
from tofuse.frontends.items import (
    Item,
    Node,
    Number,
    OperandLike,
    RngState,
    Rule,
    is_constant,
    is_scalar,
)
from tofuse.frontends.lowering import Lowering
from tofuse.frontends.ops_factory import rng_state, standard_uniform
from tofuse.frontends.ops_index import select
from tofuse.frontends.ops_matmul import matmul
from tofuse.frontends.ops_pointwise import where
from tofuse.frontends.ops_reduce import reduce
from tofuse.frontends.ops_shape import iota_along, permute
from tofuse.ir.dims import Dim
from tofuse.ir.graph import Value
from tofuse.ir.types import TensorType, is_host

FLASH = "_scaled_dot_product_flash_attention_for_cpu"


@dataclass(frozen=True)
class Options:
    """The options of an attention, each a constant or known only at run time."""

    dropout_p: Item
    is_causal: Item
    scale: Item | None  # None: the inverse root of the width

    @property
    def fit_flash(self) -> bool:
        """Whether PyTorch's flash attention on the CPU has them: no dropout, no inputs."""
        given = (self.dropout_p, self.is_causal, self.scale or self.is_causal)
        return all(map(is_constant, given)) and not self.has_dropout

    @property
    def causal(self) -> bool | None:
        """Whether later keys do not count; None if it is known only at run time."""
        return bool(self.is_causal.value) if is_constant(self.is_causal) else None

    @property
    def has_dropout(self) -> bool:
        return not (isinstance(self.dropout_p, Number) and self.dropout_p.value == 0)

    @property
    def keyword(self) -> dict[str, Argument]:
        return {"scale": self.scale.value} if isinstance(self.scale, Number) else {}


def sdpfa_fwd(
    low: Lowering,
    query: OperandLike,
    key: OperandLike,
    value: OperandLike,
    bias: OperandLike | None = None,
    mask: OperandLike | None = None,
    dropout_p: OperandLike | None = None,
    is_causal: OperandLike | None = None,
    scale: OperandLike | None = None,
) -> list[Node]:
    """Attention on [batch, heads, length, width]; return output, logsumexp, seed, offset.

    `bias` is added to the scores; scores where the bool `mask` is False do not count. A call
    without both may pass the other options right after `value`. The output's dimensions have the
    order of the query's in memory.
    """
    if not all(t is None or (isinstance(t, Node) and not t.scalar) for t in (bias, mask)):
        bias, mask, dropout_p, is_causal, scale = None, None, bias, mask, dropout_p
    q, k, v = (low.tensor(t, n) for t, n in ((query, "query"), (key, "key"), (value, "value")))
    _check_shapes(low, q, k, v)
    options = _options(low, dropout_p, is_causal, scale)
    if mask is not None and low.tensor(mask, "mask").dtype is not DataType.Bool:
        raise low.error("the mask must have type Bool")
    seed = [low.cast(low.operand(0), DataType.Int) for _ in range(2)]
    first_op = len(low.builder.ops)
    flash = options.fit_flash and _flash_runs(low, q, k, v)
    added = _added_to_scores(low, q, k, bias, mask, q.dtype if flash else _wide(q))
    if flash:
        results = [((*q.shape[:3], v.shape[3]), q.dtype), (q.shape[:3], _wide(q))]
        keyword = options.keyword | ({} if added is None else {"attn_mask": added.value})
        rows = [_rows(low, t) for t in (q, k, v)]
        args: tuple[Argument, ...] = (*rows, 0.0, bool(options.causal))
        target = f"aten.{FLASH}.default"
        out, logsumexp = low.call_results(target, args, results, (0, 1), **keyword)
        return [with_dim_order(low, first_op, out, q), logsumexp, *seed]
    weights, logsumexp = _softmax(low, _scores(low, q, k, options, added))
    if options.has_dropout:
        words = low.draw_seed()
        seed = [select(low, words, word, 0) for word in range(2)]
        kept = _kept(low, RngState(words), weights, options.dropout_p)
        weights = _dropped(low, weights, kept, options.dropout_p)
    out = low.cast(matmul(low, weights, low.cast(v, _wide(q))), q.dtype)
    return [with_dim_order(low, first_op, out, q), logsumexp, *seed]


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
    """Return the gradients of query, key and value, each with the order of its tensor in memory.

    The seed and offset are those of sdpfa_fwd.
    """
    given = (grad_output, query, key, value, output, logsumexp)
    names = ("grad_output", "query", "key", "value", "output", "logsumexp")
    tensors = [low.tensor(t, n) for t, n in zip(given, names, strict=True)]
    q, k, v = tensors[1:4]
    _check_shapes(low, q, k, v)
    shape = (*q.shape[:-1], v.shape[-1])
    for t, name in ((tensors[0], names[0]), (tensors[4], names[4])):
        _require_shape(low, t, shape, name)
    _require_shape(low, tensors[5], shape[:-1], names[5])
    options, first_op = _options(low, dropout_p, is_causal, scale), len(low.builder.ops)
    if options.fit_flash and _flash_runs(low, q, k, v):
        args: tuple[Argument, ...] = (*(_rows(low, t) for t in tensors), 0.0, bool(options.causal))
        results = [(t.shape, t.dtype) for t in (q, k, v)]
        target = f"aten.{FLASH}_backward.default"
        gradients = low.call_results(target, args, results, (0, 1, 2), **options.keyword)
    else:
        if options.has_dropout and philox_seed is None:
            raise low.error("philox_seed and philox_offset are required with dropout")
        seed = (philox_seed, philox_offset)
        state = rng_state(low, *seed) if options.has_dropout else None
        gradients = _gradients(low, tensors, options, state)
    typed = [low.cast(g, t.dtype) for g, t in zip(gradients, (q, k, v), strict=True)]
    return [with_dim_order(low, first_op, g, t) for g, t in zip(typed, (q, k, v), strict=True)]


# -- parts ----------------------------------------------------------------------------------------


def _check_shapes(low: Lowering, q: Node, k: Node, v: Node) -> None:
    if not q.rank == k.rank == v.rank or q.rank < 4:
        raise low.error(
            f"query, key and value must have rank 4 or more, not {q.rank}, {k.rank} and {v.rank}"
        )
    if not q.dtype is k.dtype is v.dtype or not q.dtype.is_float:
        raise low.error("query, key and value must have the same floating-point type")
    for d in range(q.rank - 2):
        low.require_equal(q.shape[d], k.shape[d], f"query and key at dimension {d}")
        low.require_equal(k.shape[d], v.shape[d], f"key and value at dimension {d}")
    low.require_equal(q.shape[-1], k.shape[-1], f"query and key at dimension {q.rank - 1}")
    low.require_equal(k.shape[-2], v.shape[-2], f"key and value at dimension {q.rank - 2}")


def _require_shape(low: Lowering, x: Node, shape: tuple[Dim, ...], name: str) -> None:
    if x.rank != len(shape):
        raise low.error(f"{name} must have rank {len(shape)}, not {x.rank}")
    for d, size in enumerate(shape):
        low.require_equal(x.shape[d], size, f"{name} at dimension {d}")


def _options(
    low: Lowering,
    dropout_p: OperandLike | None,
    is_causal: OperandLike | None,
    scale: OperandLike | None,
) -> Options:
    p = low.operand(0.0 if dropout_p is None else dropout_p)
    causal = low.operand(False if is_causal is None else is_causal)
    factor = None if scale is None else low.operand(scale)
    if not all(is_scalar(x) for x in (p, causal, factor) if x is not None):
        raise low.error("dropout_p, is_causal and scale must be numbers")
    return Options(p, causal, factor)


def _flash_runs(low: Lowering, q: Node, k: Node, v: Node) -> bool:
    """Whether PyTorch's flash attention takes these sizes; it divides by heads and lengths."""
    if q.rank != 4 or not is_host(low.device):
        return False
    width, value_width = q.shape[3], v.shape[3]
    if width != value_width:
        low.specialize([width, value_width])
        return False
    return not any(map(low.is_zero, (q.shape[1], q.shape[2], k.shape[2])))


def _rows(low: Lowering, x: Node) -> Value:
    """Return a tensor with contiguous rows; PyTorch's flash attention ignores other strides."""
    return x.value if has_contiguous_rows(low, x) else low.row_major(x.value)


def _wide(x: Node) -> DataType:
    return DataType.Double if x.dtype is DataType.Double else DataType.Float


def _factor(low: Lowering, q: Node, options: Options) -> OperandLike:
    """Return the factor of the scores."""
    if options.scale is not None:
        return options.scale
    width = q.shape[-1]
    if isinstance(width, int):
        return 1.0 / math.sqrt(width) if width else 1.0
    return elementwise(low, "rsqrt", Number(width, DataType.Int))


def _added_to_scores(
    low: Lowering,
    q: Node,
    k: Node,
    bias: OperandLike | None,
    mask: OperandLike | None,
    dtype: DataType,
) -> Node | None:
    """Return bias and mask as one tensor that is added to the scores; None if there is neither."""
    if bias is None and mask is None:
        return None
    added = low.operand(0.0 if bias is None else bias)
    if mask is not None:
        added = low.operand(where(low, mask, added, -math.inf))
    scores = (*q.shape[:-1], k.shape[-2])
    like_scores = Node(Value(TensorType(scores, dtype.ir), "scores"), dtype)
    if broadcast_shape(low, [like_scores, added]) != scores:
        raise low.error("bias and mask must broadcast to [batch, heads, length, length]")
    wide = low.cast(added, dtype)
    sizes = of_rank(wide.shape, len(scores))
    target = tuple(1 if e == 1 else s for e, s in zip(sizes[:-2], scores, strict=False))
    value = broadcast_to(low, wide.value, (*target, *scores[-2:]), dtype)
    return Node(low.builder.copy(value), dtype)


def _scores(low: Lowering, q: Node, k: Node, options: Options, added: Node | None) -> Node:
    """Return the scaled products of queries and keys, -inf where a key does not count."""
    op, wide = partial(elementwise_node, low), _wide(q)
    products = matmul(low, low.cast(q, wide), _transposed(low, low.cast(k, wide)))
    scores = op("mul", products, _factor(low, q, options))
    if added is not None:
        scores = op("add", scores, added)
    if options.causal is False:
        return scores
    rows, columns = (iota_along(low, scores.shape, d) for d in (-2, -1))
    counts = op("le", columns, rows)
    if options.causal is None:
        counts = op("logical_or", counts, elementwise(low, "logical_not", options.is_causal))
    masked = where(low, counts, scores, -math.inf)
    assert isinstance(masked, Node)
    return masked


def _softmax(low: Lowering, scores: Node) -> tuple[Node, Node]:
    """Return the softmax of the scores and their logsumexp; zeros in rows where none counts."""
    op, last = partial(elementwise_node, low), [scores.rank - 1]
    top = reduce("max", low, scores, last, True)
    top = low.cast(where(low, op("isneginf", top), 0.0, top), scores.dtype)
    powers = op("exp", op("sub", scores, top))
    total = reduce("sum", low, powers, last, True)
    weights = op("truediv", powers, where(low, op("eq", total, 0.0), 1.0, total))
    logsumexp = op("add", op("log", total), top)
    return weights, low.reshaped(logsumexp, scores.shape[:-1])


def _gradients(
    low: Lowering, tensors: Sequence[Node], options: Options, state: RngState | None
) -> list[Node]:
    """Return the gradients by products and a softmax; `state` is that of dropout."""
    op, product = partial(elementwise_node, low), partial(matmul, low)
    grad, q, k, v = (low.cast(t, _wide(t)) for t in tensors[:4])
    total = low.reshaped(tensors[5], (*q.shape[:-1], 1))
    weights = op("exp", op("sub", _scores(low, q, k, options, None), total))
    dropped, grad_weights = weights, product(grad, _transposed(low, v))
    if state is not None:
        kept = _kept(low, state, weights, options.dropout_p)
        dropped, grad_weights = (
            _dropped(low, x, kept, options.dropout_p) for x in (weights, grad_weights)
        )
    # flash attention takes grad * output here, and the output may have been rounded
    mean = reduce("sum", low, op("mul", weights, grad_weights), [-1], True)
    grad_scores = op("mul", weights, op("sub", grad_weights, mean))
    grad_scores = op("mul", grad_scores, _factor(low, q, options))
    return [
        product(grad_scores, k),
        product(_transposed(low, grad_scores), q),
        product(_transposed(low, dropped), grad),
    ]


def _kept(low: Lowering, state: RngState, weights: Node, p: Item) -> Node:
    """Return which weights dropout keeps."""
    uniform = standard_uniform(low, state, weights.shape, weights.dtype)
    return elementwise_node(low, "ge", uniform, p)


def _dropped(low: Lowering, x: Node, kept: Node, p: Item) -> Node:
    """Return the entries that dropout keeps, divided by their probability, and zeros."""
    scaled = elementwise(low, "truediv", x, elementwise(low, "sub", 1.0, p))
    return low.cast(where(low, kept, scaled, 0.0), x.dtype)


def _transposed(low: Lowering, x: Node) -> Node:
    return permute(low, x, [*range(x.rank - 2), x.rank - 1, x.rank - 2])


ATTENTION: dict[str, Rule] = {"sdpfa_fwd": sdpfa_fwd, "sdpfa_bwd": sdpfa_bwd}
