"""Everything that some roots lead to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def reachable(roots: Iterable[T], neighbors: Callable[[T], Iterable[T]]) -> dict[T, None]:
    """Return the roots and all that they lead to, each once."""
    found = dict.fromkeys(roots)
    work = list(found)
    while work:
        new = dict.fromkeys(n for n in neighbors(work.pop()) if n not in found)
        found |= new
        work += new
    return found
