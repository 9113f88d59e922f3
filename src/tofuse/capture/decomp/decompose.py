"""The table of decompositions that AOTAutograd applies."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import guard_or_false

from tofuse.capture.decomp.decompose_checks import CHECKED_DECOMPOSITIONS, decompose_if
from tofuse.capture.decomp.decompose_convolution import (
    convolution,
    convolution_backward,
    inference_convolution,
)
from tofuse.capture.decomp.decompose_elementwise import (
    ELEMENTWISE_DECOMPOSITIONS,
    SYMBOLIC_FLOAT_DECOMPOSITIONS,
)
from tofuse.capture.decomp.decompose_padding import PADDING_DECOMPOSITIONS
from tofuse.capture.decomp.operator_results import (
    EAGER_DTYPES,
    EAGER_ORDERS,
    as_operator_returns,
    ops_with_broadcasting,
    with_eager_result,
)
from tofuse.capture.decomp.rng import RANDOM_DECOMPOSITIONS
from tofuse.capture.fx.devices import on_host
from tofuse.capture.fx.sizes import IntLike
from tofuse.capture.lower.executor_claims import (
    ClaimPredicate,
    Decomposition,
    claim_nothing,
    skip_claimed_calls,
)
from tofuse.capture.lower.number_ranges import keep_if_out_of_range
from tofuse.cost.thresholds import MAX_UNROLLED_MATRIX
from tofuse.torch_internals.operators import OpOverload, OpOverloadPacket, schema_of
from tofuse.torch_internals.operators import decomposition_table as torch_table

aten = torch.ops.aten


def decompositions(
    *,
    decompose_random: bool = True,
    claims: ClaimPredicate = claim_nothing,
    has_symbolic_floats: bool = False,
    trains: bool = False,
) -> dict[OpOverload, Decomposition]:
    """Return the decompositions by ATen overload.

    Calls that an executor claims are not decomposed. With `has_symbolic_floats`, operators with a
    symbolic factor are, so that the factor is read from memory. Pointwise convolutions are products
    of matrices, unless the program `trains`: the library's calls are faster for its gradients.
    """
    table = _table(decompose_random, trains)
    if has_symbolic_floats:
        table = {**table, **SYMBOLIC_FLOAT_DECOMPOSITIONS}
    return skip_claimed_calls(table, claims, _kept_with_eager_results())


@functools.cache
def _table(decompose_random: bool, trains: bool) -> Mapping[OpOverload, Decomposition]:
    names = frozenset(" ".join(TORCH_DECOMPOSITIONS).split())
    table: dict[OpOverload, Decomposition] = {
        op: rule
        for op, rule in torch_table.items()
        if isinstance(op, OpOverload) and op.namespace == "aten" and _name(op) in names
    }
    table.update(_foreach())
    table.update(OWN_DECOMPOSITIONS)
    for packet in MEAN_LOSS_GRADIENTS.split():
        op = getattr(aten, packet).default
        table[op] = _with_empty_input(table[op])
    for overload in aten.linspace.overloads():
        if (op := getattr(aten.linspace, overload)) in table:
            table[op] = decompose_if(_is_in_full_precision, table[op])
    table.update(CHECKED_DECOMPOSITIONS)
    table.update(ELEMENTWISE_DECOMPOSITIONS)
    table.update(PADDING_DECOMPOSITIONS)
    if decompose_random:
        table.update(RANDOM_DECOMPOSITIONS)
    if not trains:
        table[aten.convolution.default] = inference_convolution
    table = {op: keep_if_out_of_range(op, rule) for op, rule in table.items()}
    table = {op: as_operator_returns(op, rule) for op, rule in table.items()}
    return {**_kept_with_eager_results(), **table}


@functools.cache
def _kept_with_eager_results() -> Mapping[OpOverload, Decomposition]:
    broadcasting = sorted(ops_with_broadcasting(), key=str)
    return {op: with_eager_result(op) for op in (*EAGER_ORDERS, *EAGER_DTYPES, *broadcasting)}


def _name(op: OpOverload) -> str:
    return op.name().removeprefix("aten::").split(".")[0]


def _foreach() -> dict[OpOverload, Decomposition]:
    """Return the decompositions of foreach ops to one op per tensor."""
    table: dict[OpOverload, Decomposition] = {}
    for name in FOREACH_OPS.split():
        packet = getattr(aten, f"_foreach_{name}")
        for overload in packet.overloads():
            op = getattr(packet, overload)
            numbers = overload in ("Scalar", "ScalarList")
            single = getattr(aten, SCALAR_VARIANTS.get(name, name) if numbers else name)
            has_packed_scalars = overload == "Tensor" and name.startswith("addc")
            if not schema_of(op).is_mutable and not has_packed_scalars:
                table[op] = _per_tensor(single)
    return table


def _per_tensor(single: OpOverloadPacket) -> Decomposition:
    def apply(*lists: Sequence[Tensor] | float, **options: float) -> list[Tensor]:
        count = next(len(a) for a in lists if isinstance(a, (list, tuple)))
        results = []
        for k in range(count):
            row = [a[k] if isinstance(a, (list, tuple)) else a for a in lists]
            named = {"value": row[3]} if len(row) > 3 else options  # addcmul and addcdiv
            results.append(single(*row[:3], **named))
        return results

    return apply


def _foreach_norm(
    tensors: Sequence[Tensor], order: float = 2, dtype: torch.dtype | None = None
) -> list[Tensor]:
    return [aten.linalg_vector_norm(t, order, None, False, dtype=dtype) for t in tensors]


def _linalg_vector_norm(
    x: Tensor,
    order: float = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Decompose the orders 1, 2 and infinity; half precision accumulates in float32."""
    result_dtype = dtype or x.dtype
    if order not in (1, 2, float("inf"), float("-inf")) or not result_dtype.is_floating_point:
        return NotImplemented
    if not x.dtype.is_floating_point or x.numel() == 0:
        return NotImplemented
    half_dtypes = (torch.float16, torch.bfloat16)
    wide = x.to(torch.float32 if result_dtype in half_dtypes else result_dtype)
    dims = list(dim) if dim else list(range(x.dim()))
    if order == 2:
        norm = torch.sqrt(torch.sum(wide * wide, dims, keepdim))
    elif order == 1:
        norm = torch.sum(torch.abs(wide), dims, keepdim)
    else:
        norm = (torch.amax if order > 0 else torch.amin)(torch.abs(wide), dims, keepdim)
    return norm.to(result_dtype)


def _ignoring_nan(extremum: Callable[[Tensor, Tensor], Tensor]) -> Decomposition:
    """Decompose fmax or fmin.

    Of 0.0 and -0.0, ATen's maximum returns the second; its fmax the first, but for 16-bit floats.
    """

    def apply(a: Tensor, b: Tensor) -> Tensor:
        both = extremum(a, b) if a.dtype.itemsize == 2 else extremum(b, a)
        return torch.where(a.isnan(), b, torch.where(b.isnan(), a, both))

    return apply


def _is_in_full_precision(
    *arguments: Tensor | float, dtype: torch.dtype | None = None, **options: object
) -> bool:
    """Return whether a range is in full precision; else ATen rounds ends and step to the dtype."""
    return (dtype or torch.get_default_dtype()) in FULL_PRECISION


def _select_scatter(x: Tensor, source: Tensor, dim: int, index: int) -> Tensor:
    """Return a result of x's dtype, as ATen; torch's decomposition promotes."""
    written: Tensor = torch_table[aten.select_scatter.default](x, source.to(x.dtype), dim, index)
    return written


def _with_empty_input(gradient: Decomposition) -> Decomposition:
    """Return zeros for an empty input: torch's rule divides a Python number by its size."""

    def apply(grad: Tensor, x: Tensor, *rest: object) -> Tensor:
        result = torch.zeros_like(x) if x.numel() == 0 else gradient(grad, x, *rest)
        assert isinstance(result, Tensor)
        return result

    return apply


def _nll_loss_backward(
    grad: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    """Select by comparing the class with the target, which fuses, instead of a scatter."""
    channel = 0 if x.dim() < 2 else 1
    if reduction == 1:
        grad = grad / total_weight
    channel_shape = [-1 if d == channel else 1 for d in range(x.dim())]
    classes = torch.arange(x.shape[channel], device=x.device).view(channel_shape)
    targets = target.unsqueeze(channel)
    grads = grad.unsqueeze(channel) if grad.dim() == target.dim() > 0 else grad
    value = -grads if weight is None else -grads * weight.view(channel_shape)
    is_target = (classes == targets) & (targets != ignore_index)
    return torch.where(is_target, value, 0.0)


def _embedding_dense_backward(
    grad: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor:
    """Decompose to `index_add`, which can write into reused memory."""
    if scale_grad_by_freq or not on_host(grad):
        return NotImplemented
    flat = indices.reshape(-1)
    rows = grad.reshape(flat.shape[0], grad.shape[-1])
    if padding_idx >= 0:
        rows = torch.where((flat == padding_idx).unsqueeze(1), 0.0, rows)
    zeros = grad.new_zeros(()).expand(num_weights, grad.shape[-1])
    return aten.index_add(zeros, 0, flat, rows)


def _eye(
    n: int,
    m: int | None = None,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Tensor:
    """Compare row and column indices; torch's rule fails for unsigned dtypes in `arange`."""
    if layout not in (None, torch.strided) or pin_memory:
        return NotImplemented
    rows = torch.arange(n, device=device).unsqueeze(-1)
    columns = torch.arange(n if m is None else m, device=device)
    return (rows == columns).to(dtype or torch.get_default_dtype())


def _linalg_cross(a: Tensor, b: Tensor, *, dim: int = -1) -> Tensor:
    """Decompose the cross product of tensors of equal rank."""
    if a.dim() != b.dim() or not (a.shape[dim] == b.shape[dim] == 3):
        return NotImplemented
    (a0, a1, a2), (b0, b1, b2) = a.unbind(dim), b.unbind(dim)
    return torch.stack((a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0), dim)


def _bmm(a: Tensor, b: Tensor) -> Tensor:
    """Decompose a batch of small matrix products, such as rotations, to sums that fuse."""
    sizes = (*a.shape[1:], b.shape[2])
    small = all(isinstance(n, int) and n <= MAX_UNROLLED_MATRIX for n in sizes)
    if not small or not on_host(a) or a.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    return torch.sum(a.unsqueeze(3) * b.unsqueeze(1), 2)


def _diagonal_backward(
    grad: Tensor, sizes: Sequence[int], offset: int, dim1: int, dim2: int
) -> Tensor:
    """Select each row's gradient in the column that is on the diagonal."""
    rows, columns, low = sizes[dim1], sizes[dim2], max(0, -offset)
    row_grads = torch.nn.functional.pad(grad, (low, rows - low - grad.shape[-1])).unsqueeze(-1)
    diagonal_row = torch.arange(columns, device=grad.device) - offset
    on_diagonal = torch.arange(rows, device=grad.device).unsqueeze(1) == diagonal_row
    rank = len(sizes)
    return torch.where(on_diagonal, row_grads, 0.0).movedim((-2, -1), (dim1 % rank, dim2 % rank))


def _ldexp(x: Tensor, exponent: Tensor) -> Tensor:
    return x * aten.pow.Scalar(2.0, exponent)


def _trace(x: Tensor) -> Tensor:
    return NotImplemented if x.dtype is torch.bool else torch.sum(torch.diagonal(x))


def _roll(x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    """Concatenate the two parts of each dimension in swapped order.

    For symbolic sizes a guard must ensure that they are larger than the shift.
    """
    if not dims:
        rolled = _roll(x.reshape(-1), shifts, (0,))
        return rolled if rolled is NotImplemented else rolled.reshape(x.shape)
    starts = [_roll_start(n, x.shape[d]) for n, d in zip(shifts, dims, strict=True)]
    for start, dim in zip(starts, dims, strict=True):
        if start is None:
            return NotImplemented
        extent = x.shape[dim]
        x = torch.cat((x.narrow(dim, start, extent - start), x.narrow(dim, 0, start)), dim)
    return x


def _roll_start(shift: IntLike, extent: IntLike) -> IntLike | None:
    """Return the index of the element that becomes the first; None if a symbol decides it."""
    if isinstance(shift, int) and isinstance(extent, int):
        return -shift % extent if extent else 0
    if not guard_or_false(shift < extent) or not guard_or_false(-shift < extent):
        return None
    return extent - shift if guard_or_false(shift > 0) else -shift


OWN_DECOMPOSITIONS: dict[OpOverload, Decomposition] = {
    aten.ldexp.Tensor: _ldexp,
    aten.roll.default: _roll,
    aten.view_copy.default: torch.reshape,  # torch's rule fails where `view` does
    aten.linalg_vector_norm.default: _linalg_vector_norm,
    aten._foreach_norm.Scalar: _foreach_norm,
    aten.convolution.default: convolution,
    aten.convolution_backward.default: convolution_backward,
    aten.bmm.default: _bmm,
    aten.linalg_cross.default: _linalg_cross,
    aten.diagonal_backward.default: _diagonal_backward,
    aten.eye.default: _eye,
    aten.eye.m: _eye,
    aten.trace.default: _trace,
    aten.embedding_dense_backward.default: _embedding_dense_backward,
    aten.nll_loss_backward.default: _nll_loss_backward,
    aten.nll_loss2d_backward.default: _nll_loss_backward,
    aten.select_scatter.default: _select_scatter,
    aten.fmax.default: _ignoring_nan(torch.maximum),
    aten.fmin.default: _ignoring_nan(torch.minimum),
}

FULL_PRECISION = (torch.float32, torch.float64, torch.complex64, torch.complex128)
MEAN_LOSS_GRADIENTS = "huber_loss_backward mse_loss_backward smooth_l1_loss_backward"

FOREACH_OPS = (
    "abs acos add addcdiv addcmul asin atan ceil clamp_max clamp_min cos cosh div erf erfc exp "
    "expm1 floor frac lerp lgamma log log10 log1p log2 maximum minimum mul neg pow reciprocal "
    "round rsqrt sigmoid sign sin sinh sqrt sub tan tanh trunc"
)

SCALAR_VARIANTS = {"maximum": "clamp_min", "minimum": "clamp_max"}

# Names in torch's registry of decompositions, without operators that do not fuse (scatters), have
# a lowering rule (pooling) or a better library routine (products, attention).
TORCH_DECOMPOSITIONS = (
    # norms
    "native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward",
    "native_batch_norm_backward batch_norm_backward _fused_rms_norm _fused_rms_norm_backward",
    "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_no_update",
    "_batch_norm_with_update_functional",
    "_weight_norm_interface",
    # softmax
    "_softmax_backward_data _log_softmax_backward_data _safe_softmax logsumexp",
    # activations
    "gelu_backward glu_backward hardsigmoid_backward hardtanh leaky_relu_backward",
    "log_sigmoid_backward mish_backward _prelu_kernel",
    "_prelu_kernel_backward silu_backward softplus_backward threshold_backward",
    # losses
    "binary_cross_entropy_backward binary_cross_entropy_with_logits huber_loss_backward mse_loss",
    "mse_loss_backward nll_loss_forward nll_loss2d_forward smooth_l1_loss_backward",
    # arithmetic of several ops
    "deg2rad rad2deg heaviside isneginf isposinf",
    "logit_backward nan_to_num rsub special_entr special_log_ndtr special_ndtr",
    # reductions of several ops
    "aminmax count_nonzero nansum norm dist",
    # views and rearrangements
    "affine_grid_generator block_diag diag_embed",
    "channel_shuffle pixel_shuffle pixel_unshuffle",
    "rot90 tril triu tril_indices triu_indices unsafe_split",
    "unsafe_split_with_sizes _reshape_alias expand_copy permute_copy squeeze_copy t_copy",
    "transpose_copy unsqueeze_copy unbind_copy split_with_sizes_copy",
    # creation
    "linspace zeros_like ones_like new_ones new_zeros",
    # in-place names that functionalization may leave
    "masked_fill isin",
)
