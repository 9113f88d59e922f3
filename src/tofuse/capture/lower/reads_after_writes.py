"""The detection of calls that read an argument after the program wrote into it."""

from __future__ import annotations

import operator

import torch
from torch.fx import Node

from tofuse.torch_internals.operators import OpOverload, schema_of

COPY_INTO = torch.ops.aten.copy_.default


def reads_mutated_argument(node: Node) -> bool:
    """Whether a call reads an argument, or a view of one, that a call writes into."""
    bases = [_base(n) for n in node.all_input_nodes]
    return any(u.target is COPY_INTO and u.args[0] is base for base in bases for u in base.users)


def _base(node: Node) -> Node:
    """Return the base of a chain of views."""
    while node.target is operator.getitem or _is_view(node):
        node = node.all_input_nodes[0]
    return node


def _is_view(node: Node) -> bool:
    target = node.target
    if not isinstance(target, OpOverload) or not node.all_input_nodes:
        return False
    return any(r.alias_info for r in schema_of(target).returns)
