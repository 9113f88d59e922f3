"""The operator that `flex_attention` becomes in a graph, and its definition by other operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from tofuse.torch_internals.private_names import lacking, private, takes

MODULE = "torch._higher_order_ops.flex_attention"
LOST = "PyTorch runs flex_attention"

flex_attention: Callable[..., Sequence[Tensor]] = private(
    MODULE, "flex_attention", LOST, lacking, takes("query", "key", "value", "score_mod")
)
math_attention: Callable[..., Sequence[Tensor]] = private(
    MODULE, "math_attention", LOST, lacking, takes("query", "key", "value", "score_mod")
)
