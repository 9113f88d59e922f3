"""The operator `tofuse::packed_convolution`, for graphs; a plan calls its function."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tofuse.torch_internals.packed_convolutions import packed_convolution

SCHEMA = (
    "packed_convolution(Tensor image, Tensor weight, Tensor? bias, Tensor? added, int[] padding, "
    "int[] stride, int[] dilation, int groups, str activation, float[] numbers, str algorithm)"
    " -> Tensor"
)


def _fake_convolution(
    image: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    added: Tensor | None,
    *options: object,
) -> Tensor:
    """Return a fake result; `weight` has the shape that it had before it was packed."""
    padding, stride, dilation, groups, *_ = options
    convolution: Callable[..., Tensor] = torch.conv2d  # checks the options itself
    result = convolution(image, weight, bias, stride, padding, dilation, groups)
    return result.contiguous(memory_format=torch.channels_last)


_LIBRARY = torch.library.Library("tofuse", "FRAGMENT")
_LIBRARY.define(SCHEMA)
for _key in ("CPU", "MkldnnCPU"):
    _LIBRARY.impl("packed_convolution", packed_convolution, _key)
torch.library.register_fake("tofuse::packed_convolution", _fake_convolution, lib=_LIBRARY)
OPERATOR = torch.ops.tofuse.packed_convolution.default
