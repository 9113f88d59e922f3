"""Decompositions of elementwise ATen operators with the same results as ATen."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tofuse.capture.decomp.decompose_checks import decompose_if
from tofuse.capture.lower.executor_claims import Decomposition, DecompositionResult
from tofuse.torch_internals.layouts import TypePromotion, elementwise_dtypes
from tofuse.torch_internals.operators import OpOverload, schema_of
from tofuse.torch_internals.operators import decomposition_table as torch_table

aten = torch.ops.aten


def signbit(x: Tensor) -> Tensor:
    if x.dtype == torch.bool:
        return NotImplemented
    if not x.dtype.is_floating_point:
        return x < 0
    return torch.copysign(torch.ones((), dtype=x.dtype, device=x.device), x) < 0


def round_decimals(x: Tensor, *, decimals: int) -> Tensor:
    """Scale, round and scale back, as ATen; the power of ten must be exact."""
    exact = {torch.float32: 10, torch.float64: 22}  # powers of ten that need no rounding
    if abs(decimals) > exact.get(x.dtype, -1):
        return NotImplemented
    factor = 10.0 ** abs(decimals)
    if decimals < 0:
        return torch.round(x / factor) * factor
    return torch.round(x * factor) / factor


def erfinv(y: Tensor) -> Tensor:
    """Approximate in float32, then do one Newton step in float64; within half an ulp.

    M. Giles, Approximating the erfinv function, GPU Computing Gems, 2011.
    """
    if y.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return NotImplemented
    single = y.float()
    w = -torch.log((1.0 - single) * (1.0 + single))
    guess = torch.where(
        w < 5.0, _polynomial(ERFINV_CENTRAL, w - 2.5), _polynomial(ERFINV_TAIL, w.sqrt() - 3.0)
    )
    wide, x = y.double(), (guess * single).double()
    x = x - (torch.erf(x) - wide) * torch.exp(x * x) * (math.sqrt(math.pi) / 2.0)
    return torch.where(single.abs() == 1.0, single * math.inf, x.float()).to(y.dtype)


def addr(x: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Decompose into ATen's steps, each of which rounds half precision."""
    if x.dtype == torch.bool or not x.dtype == left.dtype == right.dtype:
        return NotImplemented
    product = (left if alpha == 1 else left * alpha).unsqueeze(1) * right
    if beta == 0:
        return product
    return (x if beta == 1 else x * beta) + product


def soft_margin_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, reduction: int = 1
) -> DecompositionResult:
    """Return -y sigmoid(-x y); torch's rule, y (sigmoid(x y) - 1), loses the small gradients."""
    if not x.dtype == target.dtype == grad.dtype:
        return NotImplemented
    gradient = grad * (-target * torch.sigmoid(-target * x))
    return gradient / x.numel() if reduction == 1 else gradient


def _are_real(*operands: Tensor) -> bool:
    return not any(x.is_complex() for x in operands)


def _in_result_dtype(formula: Callable[..., DecompositionResult]) -> Decomposition:
    """Convert operands to the result's dtype first, so that each step rounds half precision."""

    def apply(*operands: Tensor | float) -> DecompositionResult:
        kind = TypePromotion.INT_TO_FLOAT
        _, dtype = elementwise_dtypes(*operands, type_promotion_kind=kind)
        device = next(x.device for x in operands if isinstance(x, Tensor))
        tensors = (
            x.to(dtype) if isinstance(x, Tensor) else torch.full((), x, dtype=dtype, device=device)
            for x in operands
        )
        return formula(*tensors)

    return apply


def _times_log(log: Callable[[Tensor], Tensor]) -> Decomposition:
    """Decompose `x * log(y)`, which is nan if y is, else 0 if x is 0."""

    def formula(x: Tensor, y: Tensor) -> Tensor:
        product = torch.where(x == 0, 0.0, x * log(y))
        return torch.where(y.isnan(), math.nan, product)

    return _in_result_dtype(formula)


def _hardtanh_backward(grad: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    """Return the gradient between the bounds; zero for nan, as ATen."""
    return torch.where((x > low) & (x < high), grad, 0.0)


def _nan_where_input_is(op: OpOverload) -> Decomposition:
    """Return torch's rule for a gradient, but nan where the last argument, the input, is nan."""

    def apply(*args: Tensor | float) -> Tensor:
        x, result = args[-1], torch_table[op](*args)
        assert isinstance(x, Tensor) and isinstance(result, Tensor)
        return torch.where(x.isnan(), x, result)

    return apply


def _logit(x: Tensor, eps: float | None = None) -> DecompositionResult:
    if not x.dtype.is_floating_point:
        return NotImplemented
    inside = x if eps is None or eps < 0 else torch.clamp(x, eps, 1 - eps)
    return torch.log(inside / (1 - inside))


def _with_symbolic_factor(step: Callable[..., Tensor], factor: str) -> Callable[..., Tensor]:
    """Decompose an operator whose argument `factor` is a symbolic float.

    The factor of a product is read from memory; as an argument it would be specialized.
    """

    def apply(*tensors: Tensor | float, **numbers: float | torch.SymFloat) -> Tensor:
        number = numbers.get(factor, 1)
        dtype, result_dtype = elementwise_dtypes(
            *tensors, type_promotion_kind=TypePromotion.DEFAULT
        )
        if not isinstance(number, torch.SymFloat) or not result_dtype.is_floating_point:
            return NotImplemented
        return step(*(torch.as_tensor(t, dtype=dtype) for t in tensors), number).to(result_dtype)

    return apply


def rrelu(
    x: Tensor,
    noise: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: torch.Generator | None = None,
) -> DecompositionResult:
    """Decompose the call without random slopes, and return its noise as it is."""
    if training:
        return NotImplemented
    return torch.nn.functional.leaky_relu(x, (lower + upper) / 2), noise


def _has_fixed_slope(
    grad: Tensor, x: Tensor, noise: Tensor, lower: float, upper: float, training: bool, *rest: bool
) -> bool:
    return not training


def _polynomial(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    """Evaluate a polynomial; the coefficients start with that of the highest power."""
    total = x * coefficients[0] + coefficients[1]
    for c in coefficients[2:]:
        total = total * x + c
    return total


ERFINV_CENTRAL = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
    *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
)
ERFINV_TAIL = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
    *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)

SYMBOLIC_FLOAT_DECOMPOSITIONS: dict[OpOverload, Decomposition] = {
    aten.add.Tensor: _with_symbolic_factor(lambda x, y, a: x + y * a, "alpha"),
    aten.sub.Tensor: _with_symbolic_factor(lambda x, y, a: x - y * a, "alpha"),
    aten.addcmul.default: _with_symbolic_factor(lambda x, y, z, a: x + y * a * z, "value"),
    aten.addcdiv.default: _with_symbolic_factor(lambda x, y, z, a: x + y * a / z, "value"),
}

# Of complex numbers ATen computes these by another formula than torch's decomposition.
REAL_FORMULAS = "sigmoid_backward sinc tanh_backward"


def _loss_in_dtype_of_input(op: OpOverload) -> Decomposition:
    """Return torch's rule with a loss in the dtype of its first operand, as ATen; it promotes."""
    rule = torch_table[op]

    def apply(x: Tensor, target: Tensor, reduction: int = 1, *options: float) -> Tensor:
        if x.dtype == target.dtype:
            loss: Tensor = rule(x, target, reduction, *options)
            return loss
        loss = rule(x, target, 0, *options).to(x.dtype)
        return loss if reduction == 0 else loss.mean() if reduction == 1 else loss.sum()

    return apply


ELEMENTWISE_DECOMPOSITIONS: dict[OpOverload, Decomposition] = {
    aten.huber_loss.default: _loss_in_dtype_of_input(aten.huber_loss.default),
    aten.soft_margin_loss.default: _loss_in_dtype_of_input(aten.soft_margin_loss.default),
    aten.signbit.default: signbit,
    aten.round.decimals: round_decimals,
    aten.erfinv.default: erfinv,
    aten.rrelu_with_noise_functional.default: rrelu,
    aten.rrelu_with_noise_backward.default: decompose_if(
        _has_fixed_slope, torch_table[aten.rrelu_with_noise_backward.default]
    ),
    aten.addr.default: addr,
    aten.soft_margin_loss_backward.default: soft_margin_loss_backward,
    aten.elu_backward.default: _nan_where_input_is(aten.elu_backward.default),
    aten.hardswish_backward.default: _nan_where_input_is(aten.hardswish_backward.default),
    aten.hardtanh_backward.default: _hardtanh_backward,
    aten.logit.default: _logit,
    **{
        op: _times_log(log)
        for packet, log in ((aten.xlogy, torch.log), (aten.special_xlog1py, torch.log1p))
        for op in (getattr(packet, name) for name in packet.overloads())
        if not schema_of(op).is_mutable
    },
    **{
        op: decompose_if(_are_real, _in_result_dtype(torch_table[op]))
        for op in (aten.logaddexp.default, aten.logaddexp2.default)
    },
    **{
        op: decompose_if(_are_real, torch_table[op])
        for op in (getattr(aten, name).default for name in REAL_FORMULAS.split())
    },
}
