"""Nest -> Nest: drop what is computed in a loop and read by nothing in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tofuse.ir.kernel import Reduce, Store, Take
from tofuse.ir.nest import (
    Do,
    For,
    Nest,
    Node,
    Restore,
)


def drop_dead(nest: Nest) -> Nest:
    """Leave out statements without readers, then loops without statements.

    Where stores get a nest beside a loop, what only they need is left behind in it.
    """
    saved = frozenset(nest.saved)
    phases = []
    for phase in nest.phases:
        body, read = _live(phase.body, saved, set())
        head, _ = _live(phase.head, saved, read)
        phases.append(replace(phase, head=head, body=body))
    return replace(nest, phases=tuple(phases))


def _live(
    nodes: Sequence[Node], saved: frozenset[str], read: set[str]
) -> tuple[tuple[Node, ...], set[str]]:
    """The nodes that matter where `read` is read after them; what they in turn read."""
    kept: list[Node] = []
    read = set(read)
    for node in reversed(nodes):
        if isinstance(node, For):
            body, inside = _live(node.body, saved, set())
            if not body:
                continue
            read = (read - {a.reduce.name for a in node.reductions}) | inside
            kept.append(replace(node, body=body))
            continue
        if isinstance(node, Restore):
            wanted = node.name in read
            read.discard(node.name)
        elif isinstance(node.stmt, (Store, Reduce, Take)):
            wanted = True  # a take reports an index out of range
        else:
            wanted = node.stmt.name in read or node.stmt.name in saved
            read.discard(node.stmt.name)
        if wanted:
            kept.append(node)
            read |= set(node.stmt.uses) if isinstance(node, Do) else set()
    return tuple(reversed(kept)), read
