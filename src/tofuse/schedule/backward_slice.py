"""The statements that others need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from tofuse.schedule.loop_placement import NestStmt

S = TypeVar("S", bound=NestStmt)


def backward_slice(
    roots: Iterable[S],
    definitions: Mapping[str, S],
    includes: Callable[[S], bool] = lambda definition: True,
) -> set[S]:
    """Return `roots` and all definitions that they need, through those that it `includes`."""
    found = set(roots)
    work = list(found)
    while work:
        needed = [definitions[u] for u in work.pop().uses if u in definitions]
        new = {d for d in needed if d not in found and includes(d)}
        found |= new
        work += new
    return found
