"""Removal of dropout calls that drop nothing."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node


def noop_dropout(gm: GraphModule) -> tuple[GraphModule, tuple[str, ...]]:
    """Replace in place each dropout that drops nothing by its input, which eager returns itself.

    AOTAutograd would copy it.
    """
    for node in gm.graph.nodes:
        if node.op != "call_function" or node.target not in DROPOUTS or not node.args:
            continue
        arguments = dict(zip(("input", "p", "training"), node.args, strict=False)) | node.kwargs
        training = arguments.get("training", node.target not in OFF_BY_DEFAULT)
        drops_nothing = training is False or arguments.get("p") == 0
        if drops_nothing and isinstance(arguments["input"], Node):
            node.replace_all_uses_with(arguments["input"])
            gm.graph.erase_node(node)
            gm.recompile()
    return gm, ()


OFF_BY_DEFAULT = frozenset((F.alpha_dropout, F.feature_alpha_dropout))


DROPOUTS = frozenset((F.dropout, torch.dropout)) | OFF_BY_DEFAULT
