"""The conversion of torch dtypes to the IR's element types."""

from __future__ import annotations

import torch

from tofuse.ir.types import DType
from tofuse.ops.reference import TO_TORCH


def from_torch_dtype(dtype: torch.dtype) -> DType:
    """Return the IR's dtype of a torch dtype; OTHER for dtypes that only PyTorch handles."""
    return FROM_TORCH.get(dtype, DType.OTHER)


FROM_TORCH = {torch_dtype: dtype for dtype, torch_dtype in TO_TORCH.items()}
