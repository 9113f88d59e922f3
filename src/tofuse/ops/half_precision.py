"""Operators whose kernels round half precision at other steps than PyTorch's operators."""

from __future__ import annotations

from tofuse.ir.executor import Request


def reject_other_rounding(request: Request) -> str | None:
    """Return why our kernel would give other bits than PyTorch's operator; None if it would not."""
    dtypes = {t.dtype for t in request.inputs}
    if any(request.target in OTHER_ROUNDING[d] for d in dtypes & OTHER_ROUNDING.keys()):
        return "precision='eager': a kernel would round half precision at other steps"
    return None


def _overloads(names: str) -> frozenset[str]:
    return frozenset(f"aten.{n}" if "." in n else f"aten.{n}.default" for n in names.split())


# Most are decomposed in float32, but PyTorch computes them step by step in the result's dtype.
# PyTorch's `lerp` with a number is one fused multiply-add; its erf loses the bits of small values.
_BOTH = _overloads(
    "binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits erf gelu "
    "gelu_backward glu_backward huber_loss huber_loss_backward lerp.Scalar logit_backward "
    "mish mish_backward mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward "
    "soft_margin_loss soft_margin_loss_backward special_entr"
)
OTHER_ROUNDING = {"bfloat16": _BOTH, "float16": _BOTH | _overloads("sigmoid_backward")}
