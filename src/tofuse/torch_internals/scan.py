"""The operator that torch's `scan` becomes in a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from tofuse.torch_internals.private_names import lacking, private

MODULE = "torch._higher_order_ops.scan"
Tensors = Sequence[Tensor]

scan: Callable[[Callable[..., Tensors], Tensors, Tensors, Tensors], Tensors] = private(
    MODULE, "scan_op", "PyTorch runs scan", lacking
)
