"""The statements that others need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from tofuse.analysis.reachability import reachable
from tofuse.ir.kernel import Next, Previous
from tofuse.ir.nest import NestStmt

S = TypeVar("S", bound=NestStmt)


def backward_slice(
    roots: Iterable[S],
    definitions: Mapping[str, S],
    includes: Callable[[S], bool] = lambda definition: True,
) -> set[S]:
    """Return `roots` and all definitions that they need, through those that it `includes`."""

    def operands(stmt: S) -> list[S]:
        needed = [definitions[u] for u in stmt.uses if u in definitions]
        if isinstance(stmt, Previous):  # which the step before computed
            steps = (d for d in definitions.values() if isinstance(d, Next))
            needed += (d for d in steps if d.previous == stmt.name)
        return [d for d in needed if includes(d)]

    return set(reachable(roots, operands))
