"""Nest -> Nest: remove statements whose values are not used in their loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tofuse.ir.kernel import WRITES, Gather, Next, Reduce, Stmt
from tofuse.ir.nest import For, Nest, Node, Reload, StmtNode, statements_in


def dead_statements(nest: Nest) -> Nest:
    """Remove statements without users, then loops without statements.

    A store that was moved out of a loop leaves its operands behind in the loop.
    """
    spilled = frozenset(nest.spills)
    phases = []
    for phase in nest.phases:
        body, read = _live_nodes(phase.body, spilled, set())
        prologue, _ = _live_nodes(phase.prologue, spilled, read)
        phases.append(replace(phase, prologue=prologue, body=body))
    return replace(nest, phases=tuple(phases))


def _live_nodes(
    nodes: Sequence[Node], spilled: frozenset[str], read: set[str]
) -> tuple[tuple[Node, ...], set[str]]:
    """Return the live nodes, if `read` are the values used after them; and the values they use."""
    live: list[Node] = []
    read = set(read)
    for node in reversed(nodes):
        if isinstance(node, For):
            body, read_in_body = _live_nodes(node.body, spilled, set())
            if not body:
                continue
            read = (read - {a.reduce.name for a in node.reductions}) | read_in_body
            inside = set(statements_in(body)) if node.carries else set[Stmt]()
            carries = tuple(c for c in node.carries if c.stmt in inside)
            live.append(replace(node, body=body, carries=carries))
            continue
        if isinstance(node, Reload):
            is_live = node.name in read
            read.discard(node.name)
        elif isinstance(node.stmt, (*WRITES, Reduce, Gather, Next)):
            is_live = True  # a gather reports an index out of range
            if isinstance(node.stmt, Next):
                read.discard(node.stmt.name)
        else:
            is_live = node.stmt.name in read or node.stmt.name in spilled
            read.discard(node.stmt.name)
        if is_live:
            live.append(node)
            read |= set(node.stmt.uses) if isinstance(node, StmtNode) else set()
    return tuple(reversed(live)), read
