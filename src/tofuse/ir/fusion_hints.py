"""Query the user's `fuse` and `no_fuse` hints for a pair of ops."""

from __future__ import annotations

from tofuse.ir.graph import Op

FUSE, NO_FUSE = "fuse", "no_fuse"


def fusion_forbidden(a: Op, b: Op) -> bool:
    """Whether a `no_fuse` hint separates two ops. Ops of the same call are not separated."""
    x, y = _hint(a), _hint(b)
    no_fuse = x.startswith(NO_FUSE) or y.startswith(NO_FUSE)
    return no_fuse and (x != y or a.loc != b.loc)


def fusion_requested(a: Op, b: Op) -> bool:
    """Whether a `fuse` hint covers both ops, so they are fused even without predicted gain."""
    return _hint(a) == FUSE == _hint(b)


def _hint(op: Op) -> str:
    return op.loc.fusion_hint if op.loc is not None else ""
