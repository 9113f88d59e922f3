"""Decompositions that keep eager's checks of their operands."""

from __future__ import annotations

import torch
from torch import Tensor

from tofuse.capture.fx.devices import on_host
from tofuse.capture.lower.executor_claims import Decomposition, DecompositionResult
from tofuse.torch_internals.operators import OpOverload
from tofuse.torch_internals.operators import decomposition_table as torch_table

aten = torch.ops.aten


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


def _floats_only(rule: Decomposition) -> Decomposition:
    """Leave integers to ATen, which raises an error; torch's decomposition promotes them."""

    def apply(x: Tensor, *args: float, **options: float) -> DecompositionResult:
        return rule(x, *args, **options) if x.dtype.is_floating_point else NotImplemented

    return apply


def _smooth_l1_loss(
    x: Tensor, target: Tensor, reduction: int = 1, beta: float = 1.0
) -> DecompositionResult:
    """Leave a negative beta to ATen, which raises an error."""
    rule = torch_table[aten.smooth_l1_loss.default]
    return rule(x, target, reduction, beta) if beta >= 0 else NotImplemented


FLOAT_FUNCTIONS = (
    "_softmax _log_softmax celu elu frac gelu glu hardshrink hardsigmoid hardswish leaky_relu "
    "log_sigmoid_forward mish selu silu softplus softshrink"
)

CHECKED_DECOMPOSITIONS: dict[OpOverload, Decomposition] = {
    aten.binary_cross_entropy.default: _binary_cross_entropy,
    aten.smooth_l1_loss.default: _smooth_l1_loss,
    **{
        op: _floats_only(torch_table[op])
        for op in (getattr(aten, name).default for name in FLOAT_FUNCTIONS.split())
    },
}
