"""Collectives in FX graphs: calls that run beside the program until it waits for them.

All ranks must start them in one order, so they are effects, which stay in program order. Other
threads or devices read their operands until `wait_tensor` of their result, so that call depends on
the operands, too: nothing writes over them before.
"""

from __future__ import annotations

import operator

from torch.fx import Node

from tofuse.analysis.alias import WAIT, starts_collective


def operands_until_wait(node: Node) -> list[Node]:
    """Return the operands of the collective that a node waits for; none for other nodes."""
    if not str(node.target).startswith(WAIT):
        return []
    (started,) = node.all_input_nodes
    if started.target is operator.getitem:
        (started,) = started.all_input_nodes
    return started.all_input_nodes if starts_collective(str(started.target)) else []
