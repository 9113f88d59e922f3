"""Decompositions of convolutions: explicit weight layouts, and separate gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tofuse.capture.lower.depthwise import is_depthwise
from tofuse.torch_internals.layouts import suggest_memory_format

aten = torch.ops.aten


def convolution(image: Tensor, weight: Tensor, *rest: object) -> Tensor:
    """Convert the weight to the image's channels-last layout.

    The library would otherwise copy it at every call.
    """
    converted = _in_image_layout(image, weight)
    return NotImplemented if converted is weight else aten.convolution(image, converted, *rest)


def inference_convolution(
    image: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    *rest: object,
) -> Tensor:
    """Multiply matrices if windows are pixels with adjacent channels; else do as `convolution`."""
    _, transposed, _, groups = rest
    if not (transposed or any(padding)) and groups == 1 and _is_product(image, weight):
        return _product(image, weight, bias, stride)
    return convolution(image, weight, bias, stride, padding, *rest)


def convolution_backward(
    grad: Tensor,
    image: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    *options: object,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Compute the gradients of image and weight in one call, and the bias's as a sum.

    1x1 and depthwise convolutions have one call per gradient: kernels or matrix products.
    """
    *arguments, mask = options
    assert isinstance(mask, (list, tuple))
    converted = _in_image_layout(image, weight)
    wanted = [k for k in (0, 1) if mask[k]]
    transposed, groups = arguments[3], arguments[5]
    separate = math.prod(weight.shape[2:]) == 1 or is_depthwise(image, weight, transposed, groups)
    calls = [[k] for k in wanted] if separate else [wanted]
    if converted is weight and not mask[2] and len(calls) < 2:
        return NotImplemented
    gradients: list[Tensor | None] = [None, None, None]
    for call in filter(None, calls):
        call_mask = [k in call for k in range(3)]
        results = aten.convolution_backward(
            grad, image, converted, bias_sizes, *arguments, call_mask
        )
        for k in call:
            gradients[k] = results[k]
    if mask[2]:
        gradients[2] = grad.sum([d for d in range(grad.dim()) if d != 1])
    return gradients[0], gradients[1], gradients[2]


def _is_product(image: Tensor, weight: Tensor) -> bool:
    """Return whether windows are pixels, and the channels of each pixel are adjacent."""
    if image.dim() != 4 or tuple(weight.shape[2:]) != (1, 1):
        return False
    is_pixel = tuple(image.shape[2:]) == (1, 1)
    return is_pixel or suggest_memory_format(image) is torch.channels_last


def _product(image: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int]) -> Tensor:
    """Return a convolution by windows of one pixel, as a product of matrices."""
    if any(n != 1 for n in stride):
        image = image[:, :, :: stride[0], :: stride[-1]]
    pixels, matrix = image.permute(0, 2, 3, 1), weight.flatten(1).t()
    rows = pixels.reshape(-1, pixels.shape[-1])
    product = rows @ matrix if bias is None else torch.addmm(bias, rows, matrix)
    if tuple(image.shape[2:]) == (1, 1):  # in the default layout, as the library's
        return product.view(*product.shape, 1, 1)
    return product.view(*pixels.shape[:-1], weight.shape[0]).permute(0, 3, 1, 2)


def _in_image_layout(image: Tensor, weight: Tensor) -> Tensor:
    """Return the weight in channels-last layout if the image is; else unchanged."""
    layout = suggest_memory_format(image)
    if layout is torch.contiguous_format or weight.is_contiguous(memory_format=layout):
        return weight
    return weight.contiguous(memory_format=layout)
