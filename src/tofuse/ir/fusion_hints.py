"""What the user's hints, which ops carry with their line, say of two ops."""

from __future__ import annotations

from tofuse.ir.graph import Op

FUSE, NO_FUSE = "fuse", "no_fuse"


def kept_apart(a: Op, b: Op) -> bool:
    """Whether one of two ops is to be alone; those of one call are not parted."""
    x, y = _hint(a), _hint(b)
    alone = x.startswith(NO_FUSE) or y.startswith(NO_FUSE)
    return alone and (x != y or a.loc != b.loc)


def asked_for(a: Op, b: Op) -> bool:
    """Whether the user wants the two in one kernel, even if it seems to gain nothing."""
    return _hint(a) == FUSE == _hint(b)


def _hint(op: Op) -> str:
    return op.loc.hint if op.loc is not None else ""
