"""Convolutions: weights that their library would copy are laid out by kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from tofuse.capture.lower.depthwise import is_depthwise

aten = torch.ops.aten


def convolution(image: Tensor, weight: Tensor, *rest: object) -> Tensor:
    """Images channels last want a weight laid out so too.

    The library would copy it at every call, into memory of its own.
    """
    laid = _laid_as(image, weight)
    return NotImplemented if laid is weight else aten.convolution(image, laid, *rest)


def convolution_backward(
    grad: Tensor,
    image: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    *options: object,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of image and weight together, unless kernels compute them: those of products
    and of depthwise ones. The bias's is a sum."""
    *form, mask = options
    assert isinstance(mask, (list, tuple))
    laid = _laid_as(image, weight)
    wanted = [k for k in (0, 1) if mask[k]]
    apart = math.prod(weight.shape[2:]) == 1 or is_depthwise(image, weight, form[3], form[5])
    calls = [[k] for k in wanted] if apart else [wanted]
    if laid is weight and not mask[2] and len(calls) < 2:
        return NotImplemented
    found: list[Tensor | None] = [None, None, None]
    for call in filter(None, calls):
        only = [k in call for k in range(3)]
        parts = aten.convolution_backward(grad, image, laid, bias_sizes, *form, only)
        for k in call:
            found[k] = parts[k]
    if mask[2]:
        found[2] = grad.sum([d for d in range(grad.dim()) if d != 1])
    return found[0], found[1], found[2]


def _laid_as(image: Tensor, weight: Tensor) -> Tensor:
    """The weight channels last where images are, and else as it is."""
    layout = suggest_memory_format(image)
    if layout is torch.contiguous_format or weight.is_contiguous(memory_format=layout):
        return weight
    return weight.contiguous(memory_format=layout)
