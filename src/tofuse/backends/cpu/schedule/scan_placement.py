"""Check that each step of a scan or a recurrence runs once."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tofuse.ir.kernel import Next, Previous, Stmt, iteration_axes
from tofuse.ir.nest import For, Nest, Node, StmtNode
from tofuse.ir.rules import Rule
from tofuse.schedule.schedule_legality import Unschedulable


def check_scans(nest: Nest) -> None:
    """Raise Unschedulable unless each loop runs what it carries once at every point.

    Each run changes what the loop carries. It may be at two places in the loop, or in a loop over
    an axis that the scan does not depend on.
    """
    for phase in nest.phases:
        for node in (*phase.prologue, *phase.body):
            _check(nest, node)


def _check(nest: Nest, node: Node) -> None:
    if not isinstance(node, For):
        return
    for carry in node.carries:
        steps: list[Stmt] = [carry.stmt]
        if isinstance(carry.stmt, Previous):
            body, name = nest.kernel.body, carry.stmt.name
            steps += (s for s in body if isinstance(s, Next) and s.previous == name)
        axes = iteration_axes(nest.kernel)[0][carry.stmt.name]
        if any(_least_runs(s, node.body, axes) != 1 for s in steps):
            raise Unschedulable(Rule.DIFFERENT_LOOPS())
    for inner in node.body:
        _check(nest, inner)


def _least_runs(stmt: Stmt, nodes: Sequence[Node], axes: Collection[str]) -> int:
    """Return how often a statement runs if loops over other axes than `axes` run twice.

    Any other number than 1 is illegal.
    """
    count = 0
    for node in nodes:
        if isinstance(node, For):
            count += _least_runs(stmt, node.body, axes) * (1 if node.loop.axis in axes else 2)
        elif isinstance(node, StmtNode):
            count += node.stmt is stmt
    return count
