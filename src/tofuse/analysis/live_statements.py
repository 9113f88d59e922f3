"""The statements of a kernel that contribute to a result."""

from __future__ import annotations

from collections.abc import Sequence

from tofuse.ir.kernel import Stmt, Store


def live_statements(body: Sequence[Stmt]) -> list[Stmt]:
    """Return the statements that a store depends on, and the stores."""
    needed: set[str] = set()
    live: list[Stmt] = []
    for stmt in reversed(body):
        if isinstance(stmt, Store) or stmt.name in needed:
            needed.update(stmt.uses)
            live.append(stmt)
    return live[::-1]
