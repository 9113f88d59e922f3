"""Programs as Dynamo hands them over: what AOTAutograd would get wrong is put right or refused."""

from __future__ import annotations

import operator

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node
from torch.fx.node import Target
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


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


def refusal(gm: GraphModule) -> str | None:
    """Why PyTorch has to run this program as it is; None where it can be compiled.

    A write into a tensor that overlaps itself has an effect that depends on the order of the
    elements, or is an error; a functional program cannot tell it.
    """
    tensors = {n: t for n in gm.graph.nodes if (t := _tensor(n)) is not None}
    inputs = [t for n, t in tensors.items() if n.op == "placeholder"]
    overlapping = {_memory(t) for t in inputs if overlaps_itself(t)}
    for node in gm.graph.nodes:
        written = [tensors[n] for n in _written(node) if n in tensors]
        if any(overlaps_itself(t) or _memory(t) in overlapping for t in written):
            return "it writes into a tensor that overlaps itself"
        if overlapping and _holds_program(node):
            return "it may write into a tensor that overlaps itself"
    return None


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two indices may lie in one place."""
    pairs = [(_guess(s), _guess(n)) for s, n in zip(tensor.stride(), tensor.shape, strict=True)]
    reach = 0
    for stride, extent in sorted(pairs):
        if extent == 0:
            return False
        if extent > 1:
            if stride <= reach:
                return True
            reach += stride * (extent - 1)
    return False


def _guess(size: int | torch.SymInt) -> int:
    """A size, or its value at the first call; no guard is made."""
    if isinstance(size, int):
        return size
    hint = size.node.hint
    return 1 if hint is None else int(hint)


def _tensor(node: Node) -> torch.Tensor | None:
    value = node.meta.get("example_value")
    strided = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return value if strided and not is_traceable_wrapper_subclass(value) else None


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _written(node: Node) -> list[Node]:
    """The tensors a call writes into."""
    if node.op not in ("call_function", "call_method"):
        return []
    name, found = _name(node.target), [node.kwargs.get("out")]
    in_place = name.endswith("_") and not name.endswith("__")
    if in_place or name in WRITERS or node.kwargs.get("inplace") is True:
        found += [*node.args[:1], node.kwargs.get("input")]
    return [x for x in found if isinstance(x, Node)]


def _holds_program(node: Node) -> bool:
    """Whether it is a program inside the program; nobody looks there."""
    owner = node.graph.owning_module
    if node.op not in ("get_attr", "call_module"):
        return False
    return owner is None or any(name == node.target for name, _ in owner.named_modules())


def _name(target: Target) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", "")


OFF_BY_DEFAULT = frozenset((F.alpha_dropout, F.feature_alpha_dropout))
DROPOUTS = frozenset((F.dropout, torch.dropout)) | OFF_BY_DEFAULT
WRITERS = frozenset(("__setitem__", "setitem")) | frozenset(
    name for name in dir(operator) if name.startswith("i") and f"__{name}__" in dir(operator)
)
