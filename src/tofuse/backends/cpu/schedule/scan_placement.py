"""Check that each step of a scan runs once."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tofuse.ir.kernel import Scan, iteration_axes
from tofuse.ir.nest import For, Nest, Node, StmtNode
from tofuse.ir.rules import Rule
from tofuse.schedule.schedule_legality import Unschedulable


def check_scans(nest: Nest) -> None:
    """Raise Unschedulable if the loop along a scan runs the scan more than once at some point.

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
        axes = iteration_axes(nest.kernel)[0][carry.scan.name]
        if _least_runs(carry.scan, node.body, axes) > 1:
            raise Unschedulable(Rule.DIFFERENT_LOOPS())
    for inner in node.body:
        _check(nest, inner)


def _least_runs(scan: Scan, nodes: Sequence[Node], axes: Collection[str]) -> int:
    """Return how often a scan runs if loops over other axes than its own run twice."""
    count = 0
    for node in nodes:
        if isinstance(node, For):
            count += _least_runs(scan, node.body, axes) * (1 if node.loop.axis in axes else 2)
        elif isinstance(node, StmtNode):
            count += node.stmt is scan
    return count
