"""Partition: the regions of a graph, and a verdict for each edge."""

from tofuse.ir.region.data import (
    PLACED,
    Partition,
    Region,
    Strided,
    Verdict,
    is_placed,
    lends,
)

__all__ = [
    "PLACED", "Partition", "Region", "Strided", "Verdict", "is_placed", "lends",
]  # fmt: skip
