"""The choice of depthwise convolutions that become kernels instead of library calls."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.fx import Node

from tofuse.capture.fx.devices import on_host
from tofuse.cost.thresholds import (
    MAX_DEPTHWISE_FILTER_TAPS,
    SLOW_LIBRARY_CHANNELS,
    SLOW_LIBRARY_TAPS,
)
from tofuse.torch_internals.layouts import suggest_memory_format

aten = torch.ops.aten
CONVOLUTIONS = frozenset((aten.convolution.default, aten.convolution_backward.default))


def is_depthwise(image: Tensor, weight: Tensor, transposed: object, groups: object) -> bool:
    """Whether each channel has its own small filter and the image is contiguous on the CPU.

    For channels-last images the library is as fast.
    """
    if transposed or image.dim() < 3 or not isinstance(groups, int):
        return False
    if not on_host(image) or not image.dtype.is_floating_point:
        return False
    if suggest_memory_format(image) is not torch.contiguous_format:
        return False
    sizes = tuple(weight.shape)
    if not all(isinstance(n, int) for n in sizes) or sizes[:2] != (groups, 1):
        return False
    return bool(image.shape[1] == groups) and math.prod(sizes[2:]) <= MAX_DEPTHWISE_FILTER_TAPS


def is_depthwise_call(node: Node) -> bool:
    """Whether a call is such a convolution, or one gradient of it: the image's or the weight's."""
    image_index = 0 if node.target is aten.convolution.default else 1
    if len(node.args) < image_index + 9:
        return False
    image, weight = (_tensor(a) for a in node.args[image_index : image_index + 2])
    transposed, _, groups = node.args[image_index + 6 : image_index + 9]
    if image is None or weight is None or not is_depthwise(image, weight, transposed, groups):
        return False
    if image_index:
        return node.args[-1] in ([True, False, False], [False, True, False])
    taps, channels = math.prod(weight.shape[2:]), weight.shape[0]
    return taps <= SLOW_LIBRARY_TAPS or channels < SLOW_LIBRARY_CHANNELS


def _tensor(argument: object) -> Tensor | None:
    value = argument.meta.get("val") if isinstance(argument, Node) else None
    return value if isinstance(value, Tensor) else None
