"""Convolutions by oneDNN with weights in a layout of its own, and what they compute in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from tofuse.torch_internals.private_names import lacking, private

LOST = "freeze=True packs no weights"
OPERATOR = "ops.mkldnn._convolution_pointwise"

PACKED_CONVOLUTION_TARGET = "tofuse.packed_convolution.default"

# A convolution, and an operator that is computed with it; and one that adds another image.
_convolution: Callable[..., Tensor] = private("torch", f"{OPERATOR}.default", LOST, lacking)
_convolution_add: Callable[..., Tensor] = private("torch", f"{OPERATOR}.binary", LOST, lacking)
_reorder: Callable[..., Tensor] = private(
    "torch._C._nn", "mkldnn_reorder_conv2d_weight", LOST, lacking
)


def pack_weight(
    weight: Tensor,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    image_shape: Sequence[int] | None,
) -> Tensor:
    """Return the weight in the layout that oneDNN prefers for images of this shape, or of any."""
    return _reorder(weight.to_mkldnn(), padding, stride, dilation, groups, image_shape)


def packed_convolution(
    image: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    added: Tensor | None,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    activation: str,
    numbers: Sequence[float],
    algorithm: str,
) -> Tensor:
    """Return a function of a convolution, or the sum of a convolution and an image.

    The result is N x C x H x W and channels last. `weight` is one of `pack_weight`. `activation` is
    oneDNN's name of the function, or "none"; the function has `numbers` and an `algorithm`. The
    image `added` has the result's shape; with it, `activation` is "none".
    """
    geometry = padding, stride, dilation, groups
    if added is None:
        return _convolution(image, weight, bias, *geometry, activation, numbers, algorithm)
    return _convolution_add(image, added, weight, bias, *geometry, "add", 1, None, [], None)


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Return whether this torch convolves with packed weights of a dtype, as a trial shows."""
    with torch.inference_mode(False), torch.no_grad():
        image = torch.ones(1, 2, 3, 3, dtype=dtype, device="cpu")
        image = image.contiguous(memory_format=torch.channels_last)
        weight = torch.ones(2, 2, 1, 1, dtype=dtype, device="cpu")
        geometry = (0, 0), (1, 1), (1, 1), 1
        try:
            packed = pack_weight(weight, *geometry, image.shape)
            plain = _convolution(image, packed, None, *geometry, "none", [], "")
            sums = _convolution_add(image, image, packed, None, *geometry, "add", 1, None, [], None)
        except Exception:  # whatever an unknown torch does
            return False
        return bool((plain == 2).all()) and bool((sums == 3).all())
