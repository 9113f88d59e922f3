"""Names of kernels, made from what they compute."""

from __future__ import annotations

from collections.abc import Sequence

from tofuse.ir.graph import Op


def region_name(ops: Sequence[Op], number: int) -> str:
    """Return a name like `softmax_mul_3`: up to four words for the ops, and the region's number."""
    kinds = [op.kind for op in ops]
    remaining, words = set(kinds), []
    for word, idiom in _IDIOMS:
        if idiom <= remaining:
            words.append(word)
            remaining -= idiom
    for kind in kinds:
        if kind in remaining and kind not in words and kind not in _UNINFORMATIVE:
            words.append(kind)
    return "_".join([*(words or kinds[:1])[:4], str(number)])


_IDIOMS = (
    ("softmax", {"amax", "exp", "sum"}),
    ("norm", {"rsqrt", "sum"}),
    ("dropout", {"uniform", "where"}),
    ("dropout", {"uniform"}),
)
_UNINFORMATIVE = {"convert", "sub", "where", "full", "div", "ge", "lt", "le", "gt"}
