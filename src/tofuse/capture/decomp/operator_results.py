"""Results of decompositions in the memory and the stride order in which operators return them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from tofuse.capture.decomp.iterator_order import iterator_order
from tofuse.capture.fx.aliases import shared_argument, storage_id
from tofuse.capture.fx.overlap import has_internal_overlap
from tofuse.capture.fx.sizes import size_hint
from tofuse.capture.lower.executor_claims import Decomposition, DecompositionResult
from tofuse.ir.dims import equal_strides, stride_order, strides_in
from tofuse.torch_internals.layouts import suggest_memory_format
from tofuse.torch_internals.operators import OpOverload, is_composite, schema_of
from tofuse.torch_internals.trees import tree_leaves, tree_map

aten = torch.ops.aten
DimOrder = tuple[int, ...]  # dimensions by decreasing stride
EagerOrder = Callable[[Sequence[object], Tensor], DimOrder]  # by arguments and result


def as_operator_returns(op: OpOverload, rule: Decomposition) -> Decomposition:
    """Return `rule` with results as `op` returns them: in its layout, in memory of their own.

    Results stay views if the operator's schema says so.
    """
    if shared_argument(op) is not None or is_composite(op):
        return rule

    def decompose(*args: object, **kwargs: object) -> DecompositionResult:
        eager_order = _eager_order(op, args)
        made = rule(*args, **kwargs)
        if made is NotImplemented:
            return made
        results = [made] if isinstance(made, Tensor) else list(made)
        tensors = (x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor))
        used = {storage_id(t) for t in tensors if t.layout is torch.strided}
        empty = all(r is None or 0 in _hints(r.shape) for r in results)  # the mean of none fails
        fakes = [None] * len(results) if empty else _fake_results(op, args, kwargs)
        for k, (result, fake) in enumerate(zip(results, fakes, strict=True)):
            if result is None:
                continue
            if eager_order is not None and k == 0:
                result = _in_order(result, eager_order(args, result))
            elif fake is not None:
                result = _in_layout_of(fake, result)
            if storage_id(result) in used:
                result = result.clone()
            results[k] = result
            used.add(storage_id(result))
        if isinstance(made, Tensor):
            (made,) = (t for t in results if t is not None)
            return made
        return tuple(results)

    return decompose


def with_eager_result(op: OpOverload) -> Decomposition:
    """Return a rule that keeps an operator and gives its result eager's stride order and dtype.

    Where torch predicts another order, the operands are made row-major first: torch predicts the
    strides of those calls correctly.
    """
    inner_call = threading.local()  # active: the rule calls the operator itself, unchanged

    def decompose(*args: object, **kwargs: object) -> DecompositionResult:
        if getattr(inner_call, "active", False):
            return NotImplemented
        eager_order, dtype = _eager_order(op, args), _eager_dtype(op, args)
        if _is_plain_sum(op, kwargs) and not _adds_unit_dims(args):
            eager_order = None
        if eager_order is None and dtype is None:
            return NotImplemented
        inner_call.active = True
        try:
            made = NotImplemented if eager_order is None else in_order(eager_order, args, kwargs)
            if dtype is None:
                return made
            result = op(*args, **kwargs) if made is NotImplemented else made
            assert isinstance(result, Tensor)
            return result.to(dtype)
        finally:
            inner_call.active = False

    def in_order(
        eager_order: EagerOrder, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> DecompositionResult:
        fake = _fake_results(op, args, kwargs)[0]
        assert fake is not None
        order = eager_order(args, fake)
        if _is_in_order(fake, order):
            return NotImplemented
        operands = tree_map(lambda x: x.contiguous() if isinstance(x, Tensor) else x, args)
        result = op(*operands, **kwargs)
        if isinstance(result, Tensor):
            return _in_order(result, order)
        return tuple(_in_order(r, order) if r.shape == result[0].shape else r for r in result)

    return decompose


def _is_plain_sum(op: OpOverload, kwargs: Mapping[str, object]) -> bool:
    """Return whether torch predicts the order of a sum: with a factor, it does not."""
    alpha = kwargs.get("alpha", 1)
    return op in SUMS_WITH_ALPHA and isinstance(alpha, (int, float)) and alpha == 1


def _eager_order(op: OpOverload, args: Sequence[object]) -> EagerOrder | None:
    """Return the order of a call's result in eager, where torch may predict another."""
    found = EAGER_ORDERS.get(op)
    if found is None and op in ops_with_broadcasting() and _adds_unit_dims(args):
        return _elementwise_order
    return found


def _eager_dtype(op: OpOverload, args: Sequence[object]) -> torch.dtype | None:
    """Return the dtype of a call's result in eager, where torch predicts another."""
    first = args[EAGER_DTYPES[op]] if op in EAGER_DTYPES else None
    if not isinstance(first, Tensor):
        return None
    dtypes = {x.dtype for x in args if isinstance(x, Tensor)}
    return first.dtype if len(dtypes) > 1 else None


def _adds_unit_dims(args: Sequence[object]) -> bool:
    """Return whether leading dimensions of size 1 that an operand gets decide about the order.

    Eager's iterator gives them a stride of 0, and torch's prediction that of an expanded tensor.
    """
    tensors = [x for x in args if isinstance(x, Tensor) and x.dim()]
    rank = max((x.dim() for x in tensors), default=0)
    if all(x.dim() == rank for x in tensors):
        return False
    layouts = [(_hints(x.shape), _hints(x.stride())) for x in tensors]
    added = max(rank - len(shape) for shape, _ in layouts)
    if all(1 not in shape[:added] for shape, _ in layouts if len(shape) == rank):
        return False
    shape = torch.broadcast_shapes(*(shape for shape, _ in layouts))
    expanded = [_expanded(*layout, rank) for layout in layouts]
    return iterator_order(shape, layouts) != iterator_order(shape, expanded)


def _expanded(shape: Sequence[int], strides: Sequence[int], rank: int) -> tuple[DimOrder, DimOrder]:
    """Return sizes and strides with leading dimensions of size 1, whose stride `expand` chooses."""
    outer, added = shape[0] * strides[0], rank - len(shape)
    return (*[1] * added, *shape), (*[outer] * added, *strides)


@functools.cache
def ops_with_broadcasting() -> frozenset[OpOverload]:
    """Return the elementwise operators of at least two tensors, in their functional forms."""
    return frozenset(
        op
        for name in BROADCASTING.split()
        for op in (getattr(getattr(aten, name), o) for o in getattr(aten, name).overloads())
        if [str(a.type) for a in schema_of(op).arguments if not a.is_out].count("Tensor") > 1
        and not any(a.is_out for a in schema_of(op).arguments)
    )


def _fake_results(
    op: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
) -> list[Tensor | None]:
    """Return the results that torch predicts for a call; it is not traced."""
    with disable_proxy_modes_tracing():
        results = op(*args, **kwargs)
    return [results] if isinstance(results, Tensor) else list(results)


def _in_layout_of(fake: Tensor, x: Tensor) -> Tensor:
    """Return a tensor with the strides of a fake one, with their gaps."""
    order = _stride_order(fake)
    if _is_in_order(fake, order) or has_internal_overlap(fake):
        return _in_order(x, order)
    if _hints(x.stride()) == _hints(fake.stride()):
        return x
    return aten.copy(x.new_empty_strided(x.shape, fake.stride()), x)


def _in_order(x: Tensor, order: DimOrder) -> Tensor:
    """Return a tensor with dense strides in an order; a copy if it has others."""
    if _is_in_order(x, order):
        return x
    return x.permute(order).contiguous().permute([order.index(d) for d in range(x.dim())])


def _is_in_order(x: Tensor, order: DimOrder) -> bool:
    shape, strides = _hints(x.shape), _hints(x.stride())
    return 0 in shape or equal_strides(strides, strides_in(order, shape), shape)


def _stride_order(x: Tensor) -> DimOrder:
    return stride_order(_hints(x.stride()))


def _hints(sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(map(size_hint, sizes))


def _elementwise_order(args: Sequence[object], result: Tensor) -> DimOrder:
    """Return the order that eager's iterator chooses by the strides of the operands."""
    if result.dim() < 2:  # a loss may be reduced
        return _row_major(args, result)
    operands = [x for x in args if isinstance(x, Tensor)]
    layouts = [(_hints(x.shape), _hints(x.stride())) for x in operands]
    return iterator_order(_hints(result.shape), layouts)


def _library_order(args: Sequence[object], result: Tensor, position: int = 0) -> DimOrder:
    """Return the order of contiguous or channels-last memory, whichever an operand has."""
    x = args[position]
    assert isinstance(x, Tensor)
    if suggest_memory_format(x) is torch.contiguous_format:
        return _row_major(args, result)
    return (0, *range(2, result.dim()), 1)


def _volume_order(args: Sequence[object], result: Tensor) -> DimOrder:
    """Return the library order for volumes; a single volume has no batch."""
    x, channels_last = args[0], (1, 2, 3, 0)
    assert isinstance(x, Tensor)
    if x.dim() == 5:
        return _library_order(args, result)
    return channels_last if _is_in_order(x, channels_last) else _row_major(args, result)


def _outer_product_order(args: Sequence[object], result: Tensor) -> DimOrder:
    """Return the order of `addr`, whose iterator walks a column and a row."""
    x, column, row = args
    assert isinstance(column, Tensor)
    return _elementwise_order((x, column.unsqueeze(1), row), result)


def _input_order(args: Sequence[object], result: Tensor) -> DimOrder:
    """Return the library order of argument 1, the input whose gradient is computed."""
    return _library_order(args, result, 1)


def _index_order(args: Sequence[object], result: Tensor) -> DimOrder:
    """Return the order that eager's iterator chooses by the strides of the source and the indices.

    It walks the dimensions that are not indexed, with those of the indices in place of the others;
    these come first if indexed dimensions are not neighbours.
    """
    x, given = args[:2]
    assert isinstance(x, Tensor) and isinstance(given, (list, tuple))
    indices = {d: i for d, i in enumerate(given) if i is not None}
    if not indices or any(i.dtype in (torch.bool, torch.uint8) for i in indices.values()):
        return _stride_order(result)
    first, last = min(indices), max(indices)
    first = first if last - first < len(indices) else 0
    kept = [d for d in range(x.dim()) if d not in indices]
    before, after = ([x.stride(d) for d in part] for part in (kept[:first], kept[first:]))
    shape = torch.broadcast_shapes(*(i.shape for i in indices.values()))
    sizes = _hints(result.shape)
    operands = [(sizes, _hints((*before, *[0] * len(shape), *after)))]
    for i in indices.values():
        reshaped = i.expand(shape).reshape((*[1] * len(before), *shape, *[1] * len(after)))
        operands.append((_hints(reshaped.shape), _hints(reshaped.stride())))
    return iterator_order(sizes, operands)


def _row_major(args: Sequence[object], result: Tensor) -> DimOrder:
    return tuple(range(result.dim()))


def _angle_order(args: Sequence[object], result: Tensor) -> DimOrder:
    """Return the order of a real argument; eager writes angles of complex numbers row by row."""
    x = args[0]
    is_complex = isinstance(x, Tensor) and x.is_complex()
    return _row_major(args, result) if is_complex else _stride_order(result)


def _order_of_rule(args: Sequence[object], result: Tensor) -> DimOrder:
    return _stride_order(result)


def _rows(order: EagerOrder, names: str) -> dict[OpOverload, EagerOrder]:
    return {getattr(aten, name).default: order for name in names.split()}


SUMS_WITH_ALPHA = (aten.add.Tensor, aten.sub.Tensor)

# The positions of the arguments whose dtype results have; torch predicts that of a promotion. No
# other operator of two to four tensors has another dtype than predicted for arguments that occur.
EAGER_DTYPES: dict[OpOverload, int] = {
    aten.huber_loss.default: 0,
    aten.soft_margin_loss.default: 0,
    aten.normal.Tensor_Tensor: 0,
    aten.mse_loss_backward.default: 1,
    aten.smooth_l1_loss_backward.default: 1,
    aten.soft_margin_loss_backward.default: 1,
}
BROADCASTING = (
    "add sub rsub mul div maximum minimum fmax fmin where addcmul addcdiv lerp atan2 hypot pow "
    "eq ne lt le gt ge fmod remainder nextafter bitwise_and bitwise_or bitwise_xor gcd lcm "
    "bitwise_left_shift bitwise_right_shift mse_loss smooth_l1_loss"
)

# Where torch predicts strides that its kernels for the CPU do not give.
EAGER_ORDERS: dict[OpOverload, EagerOrder] = {
    aten.addr.default: _outer_product_order,
    aten.angle.default: _angle_order,
    aten.ldexp.Tensor: _order_of_rule,
    aten.roll.default: _order_of_rule,
    **_rows(_elementwise_order, "special_xlog1py native_dropout_backward floor_divide"),
    **_rows(_elementwise_order, "heaviside logaddexp logaddexp2"),
    **dict.fromkeys(SUMS_WITH_ALPHA, _elementwise_order),
    **_rows(_elementwise_order, "logical_and logical_or logical_xor"),
    aten.huber_loss.default: lambda args, result: _elementwise_order(args[:1], result),
    aten.rsub.Tensor: lambda args, result: _elementwise_order((args[1], args[0]), result),
    aten.clamp.Tensor: _elementwise_order,
    aten.copysign.Tensor: _elementwise_order,
    aten.div.Tensor_mode: _elementwise_order,
    aten.xlogy.Tensor: _elementwise_order,
    aten.index.Tensor: _index_order,
    aten.pow.Scalar: _row_major,
    aten.normal.Tensor_Tensor: _row_major,
    aten.normal.Tensor_float: _row_major,
    aten.normal.float_Tensor: _row_major,
    **_rows(_row_major, "binomial poisson _standard_gamma"),
    **_rows(_row_major, "rrelu_with_noise rrelu_with_noise_functional"),
    aten.isin.Tensor_Tensor: _row_major,
    aten.isin.Tensor_Scalar: _row_major,
    **_rows(_row_major, "log_sigmoid_forward nll_loss2d_forward glu_backward"),
    **_rows(_row_major, "huber_loss_backward mse_loss_backward smooth_l1_loss_backward"),
    **_rows(_library_order, "channel_shuffle pixel_shuffle pixel_unshuffle max_unpool2d"),
    **_rows(
        _library_order, "reflection_pad2d replication_pad2d reflection_pad3d replication_pad3d"
    ),
    **_rows(_volume_order, "max_pool3d_with_indices"),
    **_rows(_input_order, "reflection_pad2d_backward replication_pad2d_backward"),
    **_rows(_input_order, "reflection_pad3d_backward replication_pad3d_backward"),
    **_rows(_input_order, "native_group_norm_backward"),
    **_rows(_library_order, "native_batch_norm _native_batch_norm_legit"),
    aten._native_batch_norm_legit.no_stats: _library_order,
    **_rows(_library_order, "_native_batch_norm_legit_functional _batch_norm_with_update"),
    **_rows(_library_order, "_batch_norm_with_update_functional _batch_norm_no_update"),
    **_rows(_library_order, "_native_batch_norm_legit_no_training"),
}
