"""The gradients of a convolution as calls of their own: each is computed by itself anyway."""

from __future__ import annotations

from tofuse.capture.call import Argument, Call
from tofuse.capture.opaque import opaque_part
from tofuse.ir.graph import Value
from tofuse.ir.types import DType

TARGET = "aten.convolution_backward.default"


def convolution_backward(call: Call, args: list[Argument]) -> list[Value | None]:
    """The gradients that are read: of image and weight by PyTorch, of the bias as a sum.

    The weight's lies as the weight does, whatever the images' layout.
    """
    *given, mask = args
    assert isinstance(mask, list)
    found: list[Value | None] = [None, None, None]
    for k in (0, 1):
        only = [k == n and bool(wanted) for n, wanted in enumerate(mask)]
        strides = call.tensor("weight").strides if k == 1 else None
        found[k] = opaque_part(call, [*given, only], k, strides)
    bias = call.node.meta["val"][2]
    if bias is not None:
        found[2] = _bias(call)
    return found


def _bias(call: Call) -> Value:
    """The sum over images and places, in float32 for the halves."""
    grad = call.tensor("grad_output")
    wide = DType.F32 if grad.dtype in (DType.F16, DType.BF16) else grad.dtype
    dims = (0, *range(2, len(grad.shape)))
    total = call.build.reduce("sum", call.build.convert(grad, wide), dims, wide)
    return call.build.convert(total, grad.dtype)
