"""Decompositions that keep eager's checks of their operands."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tofuse.capture.lower.executor_claims import Decomposition
from tofuse.torch_internals.operators import OpOverload
from tofuse.torch_internals.operators import decomposition_table as torch_table

aten = torch.ops.aten


def check_all(condition: Tensor, message: str) -> None:
    """Add a run-time check on the CPU: RuntimeError if an element is false, as eager."""
    if condition.device.type == "cpu":
        aten._assert_async.msg(torch.all(condition), message)


def _binary_cross_entropy(
    x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    check_all((x >= 0) & (x <= 1), "all elements of input should be between 0 and 1")
    loss = torch_table[aten.binary_cross_entropy.default](x, target, weight, reduction)
    assert isinstance(loss, Tensor)
    return loss


def _floats_only(rule: Decomposition) -> Decomposition:
    """Restrict a softmax to floats; ATen raises an error for integers."""

    def softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor | Sequence[Tensor | None]:
        return rule(x, dim, half_to_float) if x.dtype.is_floating_point else NotImplemented

    return softmax


CHECKED_DECOMPOSITIONS: dict[OpOverload, Decomposition] = {
    aten.binary_cross_entropy.default: _binary_cross_entropy,
    **{
        op: _floats_only(torch_table[op])
        for op in (aten._softmax.default, aten._log_softmax.default)
    },
}
