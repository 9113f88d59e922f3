"""torch's element types as ours."""

from __future__ import annotations

import torch

from tofuse.ir.types import DType
from tofuse.ops.reference import TO_TORCH


def dtype_of(dtype: torch.dtype) -> DType:
    """Our name of a torch dtype; OTHER for those that only PyTorch handles."""
    return FROM_TORCH.get(dtype, DType.OTHER)


FROM_TORCH = {theirs: ours for ours, theirs in TO_TORCH.items()}
