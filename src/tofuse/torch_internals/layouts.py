"""PyTorch's rules for the dtypes and strides of results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tofuse.torch_internals.private_names import essential

if TYPE_CHECKING:
    from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as TypePromotion
    from torch._prims_common import elementwise_dtypes as elementwise_dtypes
    from torch._prims_common import is_non_overlapping_and_dense_or_false as is_dense_or_false
    from torch._prims_common import suggest_memory_format as suggest_memory_format
else:
    (
        TypePromotion,
        elementwise_dtypes,
        is_dense_or_false,
        suggest_memory_format,
    ) = essential(
        "torch._prims_common",
        "ELEMENTWISE_TYPE_PROMOTION_KIND",
        "elementwise_dtypes",
        "is_non_overlapping_and_dense_or_false",
        "suggest_memory_format",
    )
