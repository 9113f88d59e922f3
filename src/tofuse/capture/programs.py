"""Programs as Dynamo hands them over: what AOTAutograd would get wrong is put right or refused."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node
from torch.fx.node import Target


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


def refusal(gm: GraphModule, example_inputs: Sequence[object]) -> str | None:
    """Why PyTorch has to run this program as it is; None where it can be compiled.

    A write into a tensor that overlaps itself has an effect that depends on the order of the
    elements; a functional program cannot tell it.
    """
    tensors = [t for t in example_inputs if isinstance(t, torch.Tensor)]
    if any(overlaps_itself(t) for t in tensors) and any(_may_write(n) for n in gm.graph.nodes):
        return "it may write into a tensor that overlaps itself"
    return None


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two indices may lie in one place, other than by a stride of 0.

    Those of expanded tensors (stride 0) PyTorch refuses to write by itself.
    """
    if tensor.layout is not torch.strided:
        return False
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    fixed = [(s, n) for s, n in pairs if isinstance(s, int) and isinstance(n, int)]
    reach = 0
    for stride, extent in sorted(fixed):
        if extent > 1 and stride > 0:
            if stride <= reach:
                return True
            reach += stride * (extent - 1)
    return False


def _may_write(node: Node) -> bool:
    if node.op in ("get_attr", "call_module"):
        return isinstance(node.target, str) and _is_module(node, node.target)
    if node.op not in ("call_function", "call_method"):
        return False
    name = _name(node.target)
    written = name.endswith("_") and not name.endswith("__")
    return written or name in WRITERS or "out" in node.kwargs or node.kwargs.get("inplace") is True


def _is_module(node: Node, target: str) -> bool:
    """Whether it is a program inside the program; nobody looks there."""
    owner = node.graph.owning_module
    return owner is None or any(name == target for name, _ in owner.named_modules())


def _name(target: Target) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", "")


OFF_BY_DEFAULT = frozenset((F.alpha_dropout, F.feature_alpha_dropout))
DROPOUTS = frozenset((F.dropout, torch.dropout)) | OFF_BY_DEFAULT
WRITERS = frozenset(("__setitem__", "setitem")) | frozenset(
    name for name in dir(operator) if name.startswith("i") and f"__{name}__" in dir(operator)
)
