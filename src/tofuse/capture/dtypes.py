"""torch's element types and ours."""

from __future__ import annotations

import torch

from tofuse.ir.types import DType


def dtype_of(dtype: torch.dtype) -> DType:
    """Our name of a torch dtype; OTHER for those that only PyTorch handles."""
    return FROM_TORCH.get(dtype, DType.OTHER)


FROM_TORCH = {
    torch.float64: DType.F64,
    torch.float32: DType.F32,
    torch.float16: DType.F16,
    torch.bfloat16: DType.BF16,
    torch.int64: DType.I64,
    torch.int32: DType.I32,
    torch.int16: DType.I16,
    torch.int8: DType.I8,
    torch.uint8: DType.U8,
    torch.bool: DType.BOOL,
}
TO_TORCH = {ours: theirs for theirs, ours in FROM_TORCH.items()}
