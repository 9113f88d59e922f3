"""Calls of `interpolate` that AOTAutograd must not decompose.

AOTAutograd decomposes `interpolate` whatever its table says. On bytes, ATen rounds fixed-point
sums, so a decomposition differs by one in a few elements. In training, the decomposition gathers at
computed indices, and its gradient adds to each pixel one element after the other; ATen's gradients
are sums. Only repetition by whole factors needs no such indices.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

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
_LIBRARY.impl("resize_bytes", F.interpolate, "CPU")
torch.library.register_fake("tofuse::resize_bytes", F.interpolate, lib=_LIBRARY)


def interpolate(gm: GraphModule) -> tuple[GraphModule, tuple[str, ...]]:
    """Replace in place calls of `interpolate` that AOTAutograd must not decompose.

    Of bytes, by `tofuse::resize_bytes`; of images that require grad, by a call without
    decompositions.
    """
    for node in gm.graph.find_nodes(op="call_function", target=F.interpolate):
        arguments = dict(zip(NAMES, node.args, strict=False)) | node.kwargs
        image = arguments["input"]
        value = image.meta.get("example_value") if isinstance(image, Node) else None
        if not isinstance(value, Tensor):
            continue
        if value.dtype == torch.uint8 and not arguments.get("antialias"):
            size, scale = (
                _per_dimension(arguments.get(n), value.dim() - 2) for n in ("size", "scale_factor")
            )
            mode = arguments.get("mode", "nearest")
            rest = arguments.get("align_corners"), arguments.get("recompute_scale_factor")
            node.target = torch.ops.tofuse.resize_bytes.default
            node.args, node.kwargs = (image, size, scale, mode, *rest), {}
        elif (
            torch.is_grad_enabled()
            and value.requires_grad
            and _has_plain_sizes(value, arguments.get("size"))
            and not _is_whole_repetition(arguments, value, node.meta["example_value"])
        ):
            node.target = _without_decompositions(F.interpolate)
        gm.recompile()
    return gm, ()


@functools.cache
def _without_decompositions(function: Callable[..., object]) -> Callable[..., object]:
    """Return the function without torch's decompositions that are written in Python."""

    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> object:
        with without_python_dispatcher():
            return function(*args, **kwargs)

    return call


def _has_plain_sizes(image: Tensor, size: Argument) -> bool:
    """Return whether ATen can compute the result's sizes on the CPU.

    Sizes that are nodes, or expressions of symbols, need torch's Python.
    """
    requested = size if isinstance(size, (list, tuple)) else [size]
    sizes: tuple[object, ...] = tuple(image.shape[2:])
    plain = all(n.node.expr.is_symbol for n in sizes if isinstance(n, torch.SymInt))
    return image.device.type == "cpu" and plain and not any(isinstance(n, Node) for n in requested)


def _is_whole_repetition(arguments: Mapping[str, Argument], image: Tensor, result: Tensor) -> bool:
    """Return whether each pixel is repeated a whole number of times, known while compiling."""
    before, after = image.shape[2:], result.shape[2:]
    if not all(isinstance(n, int) for n in (*before, *after)):
        return False
    divisible = all(b and a % b == 0 for b, a in zip(before, after, strict=True))
    scale = arguments.get("scale_factor")
    scales = scale if isinstance(scale, (list, tuple)) else [scale]
    exact = all(s is None or (isinstance(s, (int, float)) and s == int(s)) for s in scales)
    return divisible and exact and arguments.get("mode", "nearest") in NEAREST


def _per_dimension(value: object, count: int) -> object:
    """Return the value as a list with an entry for each image dimension; None stays None."""
    return value if value is None or isinstance(value, (list, tuple)) else [value] * count


NAMES = ("input", "size", "scale_factor", "mode", "align_corners", "recompute_scale_factor")
NEAREST = ("nearest", "nearest-exact")
