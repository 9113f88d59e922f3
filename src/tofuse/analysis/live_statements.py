"""The statements of a kernel that contribute to a result."""

from __future__ import annotations

from collections.abc import Sequence

from tofuse.ir.kernel import WRITES, Next, Previous, Stmt


def live_statements(body: Sequence[Stmt]) -> list[Stmt]:
    """Return the statements that a store depends on, and the stores."""
    definitions = {s.name: s for s in body if not isinstance(s, WRITES)}
    steps = {s.previous: s for s in body if isinstance(s, Next)}
    live: set[Stmt] = set()
    work: list[Stmt] = [s for s in body if isinstance(s, WRITES)]
    while work:
        stmt = work.pop()
        if stmt in live:
            continue
        live.add(stmt)
        work += (definitions[u] for u in stmt.uses if u in definitions)
        if isinstance(stmt, Previous):  # which the step before computed
            work.append(steps[stmt.name])
    return [s for s in body if s in live]
