"""Images that are resized, and trained through: by PyTorch's operators, whose gradients are sums.

Taken apart, a resize reads its image at computed places, and the gradient adds to each place one
element after the other. Neighbours repeated whole times are no such places (`rules_resample.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node
from torch.fx.node import Argument


def resize_whole(gm: GraphModule) -> None:
    """Let calls of `interpolate` in a program of Dynamo's that trains reach PyTorch's operators."""
    if not torch.is_grad_enabled():
        return
    changed = False
    for node in gm.graph.find_nodes(op="call_function", target=F.interpolate):
        if _trains(node) and not _repeats(node):
            node.target, changed = _whole(F.interpolate), True
    if changed:
        gm.recompile()


@functools.cache
def _whole(function: Callable[..., object]) -> Callable[..., object]:
    """The function where torch's own decompositions, written in Python, are not looked at."""

    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> object:
        with torch._C._DisablePythonDispatcher():
            return function(*args, **kwargs)

    return call


def _trains(node: Node) -> bool:
    """Whether its image needs a gradient. Sizes that are asked for as symbols, or are computed from
    some, need torch's Python."""
    given = _given(node)
    image, size = given.get("input"), given.get("size")
    value = image.meta.get("example_value") if isinstance(image, Node) else None
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return False
    asked = size if isinstance(size, (list, tuple)) else [size]
    sizes: tuple[object, ...] = tuple(value.shape[2:])
    plain = all(n.node.expr.is_symbol for n in sizes if isinstance(n, torch.SymInt))
    return value.device.type == "cpu" and plain and not any(isinstance(n, Node) for n in asked)


def _repeats(node: Node) -> bool:
    """Whether each element is repeated, as often as any other, and known to be."""
    given = _given(node)
    image = given["input"]
    assert isinstance(image, Node)
    before, after = image.meta["example_value"].shape[2:], node.meta["example_value"].shape[2:]
    if not all(isinstance(n, int) for n in (*before, *after)):
        return False
    whole = all(b and a % b == 0 for b, a in zip(before, after, strict=True))
    scale = given.get("scale_factor")
    scales = scale if isinstance(scale, (list, tuple)) else [scale]
    exact = all(s is None or (isinstance(s, (int, float)) and s == int(s)) for s in scales)
    return whole and exact and given.get("mode", "nearest") in ("nearest", "nearest-exact")


def _given(node: Node) -> dict[str, Argument]:
    names = ("input", "size", "scale_factor", "mode")
    return dict(zip(names, node.args, strict=False)) | node.kwargs
