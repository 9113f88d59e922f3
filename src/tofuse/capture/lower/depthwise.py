"""Depthwise convolutions, which are sums of a few products for each element, and no library's."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.fx import Node

aten = torch.ops.aten
CONVOLUTIONS = frozenset((aten.convolution.default, aten.convolution_backward.default))
MOST_PLACES = 64  # of a window; each is a read and a product
FEW_PLACES, BLOCK = 32, 16  # up to so many places, or for fewer channels, the library is slower


def is_depthwise(image: Tensor, weight: Tensor, transposed: object, groups: object) -> bool:
    """Whether each channel is convolved with a small window of its own, on the CPU, row by row.

    Of images channels last the library's are as fast.
    """
    if transposed or image.dim() < 3 or not isinstance(groups, int):
        return False
    if image.device.type != "cpu" or not image.dtype.is_floating_point:
        return False
    if suggest_memory_format(image) is not torch.contiguous_format:
        return False
    sizes = tuple(weight.shape)
    if not all(isinstance(n, int) for n in sizes) or sizes[:2] != (groups, 1):
        return False
    return bool(image.shape[1] == groups) and math.prod(sizes[2:]) <= MOST_PLACES


def convolves_depthwise(node: Node) -> bool:
    """Whether a call is one; of its gradients, the image's or the weight's alone."""
    first = 0 if node.target is aten.convolution.default else 1
    if len(node.args) < first + 9:
        return False
    image, weight = (_tensor(a) for a in node.args[first : first + 2])
    transposed, _, groups = node.args[first + 6 : first + 9]
    if image is None or weight is None or not is_depthwise(image, weight, transposed, groups):
        return False
    if first:
        return node.args[-1] in ([True, False, False], [False, True, False])
    return math.prod(weight.shape[2:]) <= FEW_PLACES or weight.shape[0] < BLOCK


def _tensor(argument: object) -> Tensor | None:
    value = argument.meta.get("val") if isinstance(argument, Node) else None
    return value if isinstance(value, Tensor) else None
