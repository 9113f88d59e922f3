"""Readable names: of kernels, from what they compute, and of rules that ops are fused by."""

from __future__ import annotations

from collections.abc import Sequence

from tofuse.ir.graph import Op
from tofuse.ir.region import Verdict
from tofuse.ops.table import Pattern


def region_name(ops: Sequence[Op], number: int) -> str:
    """`softmax_mul_3`: up to four words for what the ops amount to, and the region's number."""
    kinds = [op.kind for op in ops]
    present, words = set(kinds), []
    for word, needed in _IDIOMS:
        if needed <= present:
            words.append(word)
            present -= needed
    for kind in kinds:
        if kind in present and kind not in words and kind not in _DULL:
            words.append(kind)
    return "_".join([*(words or kinds[:1])[:4], str(number)])


_IDIOMS = (
    ("softmax", {"amax", "exp", "sum"}),
    ("norm", {"rsqrt", "sum"}),
    ("dropout", {"uniform", "where"}),
    ("dropout", {"uniform"}),
)
_DULL = {"convert", "sub", "where", "full", "div", "ge", "lt", "le", "gt"}


RULE_NAMES = {
    Pattern.ELEMENTWISE: "elementwise over common axes",
    Pattern.REDUCE: "reduction over the producer's axes",
    Pattern.TAKE: "index computed in place",
    Pattern.JOIN: "pieces read in place",
}


def sibling(a: Op, b: Op) -> Verdict:
    """Of two ops in one kernel for what they read."""
    return Verdict(a.result.name, b.result.name, True, "both read one tensor", loc=b.loc)
