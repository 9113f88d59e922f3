"""Decompositions that keep eager's checks of their operands."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tofuse.capture.fx.devices import on_host
from tofuse.capture.lower.executor_claims import Decomposition, DecompositionResult
from tofuse.torch_internals.operators import OpOverload
from tofuse.torch_internals.operators import decomposition_table as torch_table

aten = torch.ops.aten


def decompose_if(accepts: Callable[..., bool], rule: Decomposition) -> Decomposition:
    """Return `rule` for calls whose arguments `accepts` holds for, and leave others to ATen."""

    def apply(*args: object, **kwargs: object) -> DecompositionResult:
        return rule(*args, **kwargs) if accepts(*args, **kwargs) else NotImplemented

    return apply


def check_all(condition: Tensor, message: str) -> None:
    """Add a run-time check on the CPU: RuntimeError if an element is false, as eager."""
    if on_host(condition):
        aten._assert_async.msg(torch.all(condition), message)


def _binary_cross_entropy(
    x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    check_all((x >= 0) & (x <= 1), "all elements of input should be between 0 and 1")
    loss = torch_table[aten.binary_cross_entropy.default](x, target, weight, reduction)
    assert isinstance(loss, Tensor)
    return loss


def _attention(
    query: Tensor, key: Tensor, value: Tensor, *rest: float, **options: object
) -> Tensor:
    """Compare the lengths of keys and values, which PyTorch's rule for shapes does not.

    Keys and values of a cache that grows have sizes of two names. The comparison becomes a guard,
    and then both sizes have one name.
    """
    if key.dim() == value.dim() == 4:
        bool(key.shape[2] == value.shape[2])
    return NotImplemented


def _is_float(x: Tensor, *args: float, **options: float) -> bool:
    """Return whether an operand is floating: for integers, ATen raises an error."""
    return x.dtype.is_floating_point


def _has_valid_beta(x: Tensor, target: Tensor, reduction: int = 1, beta: float = 1.0) -> bool:
    return beta >= 0


def _is_no_bool(x: Tensor, threshold: float, value: float) -> bool:
    return x.dtype is not torch.bool


FLOAT_FUNCTIONS = (
    "_softmax _log_softmax celu elu frac gelu glu hardshrink hardsigmoid hardswish leaky_relu "
    "log_sigmoid_forward mish silu softplus softshrink"
)

CHECKED_DECOMPOSITIONS: dict[OpOverload, Decomposition] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    aten.binary_cross_entropy.default: _binary_cross_entropy,
    aten.smooth_l1_loss.default: decompose_if(
        _has_valid_beta, torch_table[aten.smooth_l1_loss.default]
    ),
    aten.threshold.default: decompose_if(_is_no_bool, torch_table[aten.threshold.default]),
    **{
        op: decompose_if(_is_float, torch_table[op])
        for op in (getattr(aten, name).default for name in FLOAT_FUNCTIONS.split())
    },
}
