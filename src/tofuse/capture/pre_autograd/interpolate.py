"""Resizing byte images: kept from the decomposition that torch insists on, which rounds otherwise.

AOTAutograd takes `interpolate` apart whatever its table says. On bytes ATen rounds fixed-point
sums, so that one value in a few differs by one; an operator of our own hides the call from it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule, Node

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


def hide_resizing(gm: GraphModule) -> None:
    """Replace every `interpolate` of bytes with the operator above."""
    for node in gm.graph.find_nodes(op="call_function", target=F.interpolate):
        given = dict(zip(NAMES, node.args, strict=False)) | node.kwargs
        x = given["input"]
        value = x.meta.get("example_value") if isinstance(x, Node) else None
        if not isinstance(value, Tensor) or value.dtype != torch.uint8 or given.get("antialias"):
            continue
        size, scale = (_each(given.get(n), value.dim() - 2) for n in ("size", "scale_factor"))
        mode = given.get("mode", "nearest")
        rest = given.get("align_corners"), given.get("recompute_scale_factor")
        node.target = torch.ops.tofuse.resize_bytes.default
        node.args, node.kwargs = (x, size, scale, mode, *rest), {}
        gm.recompile()


def _each(value: object, count: int) -> object:
    """One number for every dimension of an image."""
    return value if value is None or isinstance(value, (list, tuple)) else [value] * count


NAMES = ("input", "size", "scale_factor", "mode", "align_corners", "recompute_scale_factor")
