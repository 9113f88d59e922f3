"""Calls of `interpolate` that AOTAutograd must not decompose.

AOTAutograd decomposes `interpolate` whatever its table says. On bytes, ATen rounds fixed-point
sums, so a decomposition differs by one in a few elements. In training, the decomposition gathers at
computed indices, and its gradient adds to each pixel one element after the other; ATen's gradients
are sums. Only repetition by whole factors needs no such indices.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import Argument

from tofuse.torch_internals.dispatch import without_python_dispatcher

_LIBRARY = torch.library.Library("tofuse", "FRAGMENT")
_LIBRARY.define(
    "resize_bytes(Tensor x, SymInt[]? size, float[]? scale, str mode, bool? corners, "
    "bool? recompute) -> Tensor"
)


def _resize(
    x: Tensor,
    size: Sequence[int] | None,
    scale: Sequence[float] | None,
    mode: str,
    corners: bool | None,
    recompute: bool | None,
) -> Tensor:
    return F.interpolate(x, size, scale, mode, corners, recompute)


_LIBRARY.impl("resize_bytes", _resize, "CPU")
torch.library.register_fake("tofuse::resize_bytes", _resize, lib=_LIBRARY)


def interpolate(gm: GraphModule) -> tuple[GraphModule, tuple[str, ...]]:
    """Replace in place calls of `interpolate` that AOTAutograd must not decompose."""
    _replace_byte_images(gm)
    _replace_training(gm)
    return gm, ()


def _replace_byte_images(gm: GraphModule) -> None:
    """Replace `interpolate` of bytes by `tofuse::resize_bytes`."""
    for node in gm.graph.find_nodes(op="call_function", target=F.interpolate):
        arguments = _arguments(node)
        x = arguments["input"]
        value = x.meta.get("example_value") if isinstance(x, Node) else None
        if not isinstance(value, Tensor) or value.dtype != torch.uint8:
            continue
        if arguments.get("antialias"):
            continue
        size, scale = (
            _per_dimension(arguments.get(n), value.dim() - 2) for n in ("size", "scale_factor")
        )
        mode = arguments.get("mode", "nearest")
        rest = arguments.get("align_corners"), arguments.get("recompute_scale_factor")
        node.target = torch.ops.tofuse.resize_bytes.default
        node.args, node.kwargs = (x, size, scale, mode, *rest), {}
        gm.recompile()


def _replace_training(gm: GraphModule) -> None:
    """Replace `interpolate` of images that require grad by a call without decompositions."""
    if not torch.is_grad_enabled():
        return
    changed = False
    for node in gm.graph.find_nodes(op="call_function", target=F.interpolate):
        if _needs_gradient(node) and not _is_whole_repetition(node):
            node.target, changed = _without_decompositions(F.interpolate), True
    if changed:
        gm.recompile()


@functools.cache
def _without_decompositions(function: Callable[..., object]) -> Callable[..., object]:
    """Return the function without torch's decompositions that are written in Python."""

    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> object:
        with without_python_dispatcher():
            return function(*args, **kwargs)

    return call


def _needs_gradient(node: Node) -> bool:
    """Return whether the image requires grad and ATen can compute the result's sizes.

    Sizes that are nodes, or expressions of symbols, need torch's Python.
    """
    arguments = _arguments(node)
    image, size = arguments.get("input"), arguments.get("size")
    value = image.meta.get("example_value") if isinstance(image, Node) else None
    if not isinstance(value, Tensor) or not value.requires_grad:
        return False
    requested = size if isinstance(size, (list, tuple)) else [size]
    sizes: tuple[object, ...] = tuple(value.shape[2:])
    plain = all(n.node.expr.is_symbol for n in sizes if isinstance(n, torch.SymInt))
    return value.device.type == "cpu" and plain and not any(isinstance(n, Node) for n in requested)


def _is_whole_repetition(node: Node) -> bool:
    """Return whether each pixel is repeated a whole number of times, known while compiling."""
    arguments = _arguments(node)
    image = arguments["input"]
    assert isinstance(image, Node)
    before, after = image.meta["example_value"].shape[2:], node.meta["example_value"].shape[2:]
    if not all(isinstance(n, int) for n in (*before, *after)):
        return False
    divisible = all(b and a % b == 0 for b, a in zip(before, after, strict=True))
    scale = arguments.get("scale_factor")
    scales = scale if isinstance(scale, (list, tuple)) else [scale]
    exact = all(s is None or (isinstance(s, (int, float)) and s == int(s)) for s in scales)
    return divisible and exact and arguments.get("mode", "nearest") in NEAREST


def _arguments(node: Node) -> dict[str, Argument]:
    return dict(zip(NAMES, node.args, strict=False)) | node.kwargs


def _per_dimension(value: object, count: int) -> object:
    """Return the value as a list with an entry for each image dimension; None stays None."""
    return value if value is None or isinstance(value, (list, tuple)) else [value] * count


NAMES = ("input", "size", "scale_factor", "mode", "align_corners", "recompute_scale_factor")
NEAREST = ("nearest", "nearest-exact")
