"""Partition: the regions of a graph, with a verdict for each considered edge."""

from tofuse.ir.region.data import (
    ELIMINATED,
    MemRef,
    Partition,
    Region,
    Verdict,
    is_aten_view,
    is_eliminated_concat,
)
from tofuse.ir.region.rules import Reason, RejectedKernel, Rule

__all__ = [
    "ELIMINATED", "MemRef", "Partition", "Reason", "Region", "RejectedKernel",
    "Rule", "Verdict", "is_aten_view", "is_eliminated_concat",
]  # fmt: skip
