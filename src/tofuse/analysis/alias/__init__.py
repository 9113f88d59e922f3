"""Alias analysis: who shares memory with whom, who may write it, and who sees it."""

from tofuse.analysis.alias.alias_analysis import AliasAnalysis, view_chain
from tofuse.analysis.alias.concat_slices import operand_slice
from tofuse.analysis.alias.memory_effects import (
    ELIMINATED,
    EXCLUSIVE_RESULTS,
    UNDECLARED_VIEWS,
    WAIT,
    has_effect,
    is_aten_view,
    is_collective,
    is_communication,
    is_eliminated_concat,
    is_view,
    is_wait,
    packed_operand,
    returns_view,
    starts_collective,
    updates_operand,
    view_ops,
)
from tofuse.analysis.alias.strides import (
    MemRef,
    dense_strides,
    reshape_strides,
    view_memref,
    visible_strides,
)

__all__ = [
    "ELIMINATED", "EXCLUSIVE_RESULTS", "UNDECLARED_VIEWS", "WAIT", "AliasAnalysis", "MemRef",
    "dense_strides", "has_effect", "is_aten_view", "is_collective",
    "is_communication",
    "is_eliminated_concat",
    "is_view", "is_wait", "operand_slice", "packed_operand", "reshape_strides", "returns_view",
    "starts_collective", "updates_operand", "view_chain", "view_memref", "view_ops",
    "visible_strides",
]  # fmt: skip
