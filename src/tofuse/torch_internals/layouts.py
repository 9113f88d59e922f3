"""PyTorch's rules for the dtypes and strides of results."""

from __future__ import annotations

from torch._prims_common import (
    ELEMENTWISE_TYPE_PROMOTION_KIND,
    elementwise_dtypes,
    is_non_overlapping_and_dense_or_false,
    suggest_memory_format,
)

__all__ = [
    "ELEMENTWISE_TYPE_PROMOTION_KIND",
    "elementwise_dtypes",
    "is_non_overlapping_and_dense_or_false",
    "suggest_memory_format",
]
