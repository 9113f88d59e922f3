"""Dropout that drops nothing returns its input itself."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node


def pass_through_dropout(gm: GraphModule) -> None:
    """Dropout that drops nothing gives its input itself in eager; AOTAutograd would copy it."""
    for node in gm.graph.nodes:
        if node.op != "call_function" or node.target not in DROPOUTS or not node.args:
            continue
        given = dict(zip(("input", "p", "training"), node.args, strict=False)) | node.kwargs
        training = given.get("training", node.target not in OFF_BY_DEFAULT)
        if (training is False or given.get("p") == 0) and isinstance(given["input"], Node):
            node.replace_all_uses_with(given["input"])
            gm.graph.erase_node(node)
            gm.recompile()


OFF_BY_DEFAULT = frozenset((F.alpha_dropout, F.feature_alpha_dropout))


DROPOUTS = frozenset((F.dropout, torch.dropout)) | OFF_BY_DEFAULT
