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
_STEPS = _overloads(
    "addr binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits erf "
    "gelu gelu_backward glu_backward huber_loss huber_loss_backward lerp.Scalar logit_backward "
    "mish mish_backward mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward "
    "soft_margin_loss soft_margin_loss_backward special_entr"
)
# PyTorch rounds once more in elements that fill no vector.
_TAILS = _overloads("acos acosh asin asinh rsqrt")
# The order of a sum, and where its parts are rounded, decides its last bit.
_REDUCTIONS = _overloads(
    "convolution convolution_backward embedding_dense_backward index_add index_put "
    "_log_softmax _log_softmax_backward_data _softmax _softmax_backward_data linalg_vector_norm "
    "logsumexp mean mean.dim prod prod.dim_int scatter_add scatter_reduce.two "
    "std.correction std_mean.correction sum "
    "sum.dim_IntList var.correction var_mean.correction "
    "native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward "
    "_fused_rms_norm _fused_rms_norm_backward "
    "native_batch_norm native_batch_norm_backward batch_norm_backward _native_batch_norm_legit "
    "_native_batch_norm_legit.no_stats _native_batch_norm_legit_functional "
    "_native_batch_norm_legit_no_training _batch_norm_with_update "
    "_batch_norm_with_update_functional _batch_norm_no_update "
    "avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward _adaptive_avg_pool2d "
    "_adaptive_avg_pool2d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward "
    "max_pool2d_with_indices_backward max_pool3d_with_indices_backward "
    "reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward "
    "replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward"
)
_BOTH = _STEPS | _TAILS | _REDUCTIONS
OTHER_ROUNDING = {"bfloat16": _BOTH, "float16": _BOTH | _overloads("sigmoid_backward")}
