"""Rules for depthwise convolutions: for each tap a slice times the channels' weights."""

from __future__ import annotations

from collections.abc import Callable

from tofuse.capture.lower.builder import Builder
from tofuse.capture.lower.call import AtenCall, LoweringRule
from tofuse.capture.lower.sliding_window import (
    Tap,
    WindowDimension,
    WindowGradient,
    tap_slices,
    window_dimensions,
)
from tofuse.ir.dims import Dim
from tofuse.ir.graph import Value


def convolution(call: AtenCall) -> Value:
    """Sum the products over the taps, in float32 for half precision, and add the bias."""
    out, build, dtype = call.out, call.build, call.out.dtype.opmath
    x, weight = (build.convert(call.tensor(n), dtype) for n in ("input", "weight"))
    windows = _windows(call, x.shape, out.shape)
    products = (
        build.emit("mul", (tap_slice, _weight_of_tap(build, weight, tap, out.shape)), {})
        for tap, tap_slice in tap_slices(build, x, windows, 0.0)
    )
    total = build.fold("add", products)
    if call.has("bias"):
        bias = build.broadcast(build.convert(call.tensor("bias"), dtype), out.shape, (1,))
        total = build.emit("add", (total, bias), {})
    return build.convert(total, out.dtype)


def convolution_gradient(call: AtenCall) -> tuple[Value | None, ...]:
    """Return the gradient of the image or of the weight; the bias's is decomposed to a sum."""
    image, _, _ = call.node.meta["val"]
    if image is None:
        return None, _weight_gradient(call), None
    return _image_gradient(call), None, None


def _image_gradient(call: AtenCall) -> Value:
    """Sum, for each element, the gradients of its windows times the weights of its taps."""
    image, build = call.node.meta["val"][0], call.build
    out = call.type_of(image)
    dtype = out.dtype.opmath
    grad, weight = (build.convert(call.tensor(n), dtype) for n in ("grad_output", "weight"))
    windows = _windows(call, out.shape, grad.shape)
    gradient = WindowGradient(call, image, windows, dtype)
    padded = gradient.pad_windows(grad, 0.0)

    def contribution(residue: Tap, tap: Tap, windows: Callable[[Value], Value]) -> Value:
        tap_grad = windows(padded)
        tap_weight = _weight_of_tap(build, weight, tap, tap_grad.shape)
        return build.emit("mul", (tap_grad, tap_weight), {})

    return build.convert(gradient.sum_over_windows(contribution), out.dtype)


def _weight_gradient(call: AtenCall) -> Value:
    """Sum, for each tap, the image elements at it times the gradients, over all windows."""
    build, out = call.build, call.type_of(call.node.meta["val"][1])
    dtype = out.dtype.opmath
    grad, x = (build.convert(call.tensor(n), dtype) for n in ("grad_output", "input"))
    windows = _windows(call, x.shape, grad.shape)
    dims = tuple(d for d in range(len(grad.shape)) if d != 1)
    sums = []
    for _, tap_slice in tap_slices(build, x, windows, 0.0):
        product = build.emit("mul", (grad, tap_slice), {})
        total = build.reduce("sum", product, dims, dtype)
        sums.append(build.reshape(total, (*total.shape, 1)))
    return build.convert(build.reshape(build.cat(sums, 1), out.shape), out.dtype)


def _windows(
    call: AtenCall, image: tuple[Dim, ...], result: tuple[Dim, ...]
) -> tuple[WindowDimension, ...]:
    sizes = tuple(n for n in call.tensor("weight").shape[2:] if isinstance(n, int))
    options = (call.per_dim(n, len(image) - 2) for n in ("stride", "dilation", "padding"))
    return window_dimensions(image[2:], result[2:], sizes, *options, floor=True)


def _weight_of_tap(build: Builder, weight: Value, tap: Tap, shape: tuple[Dim, ...]) -> Value:
    """Broadcast each channel's weight at a tap to a shape."""
    for d, k in enumerate(tap, 2):
        weight = build.slice(weight, d, k, 1)
    return build.broadcast(build.reshape(weight, weight.shape[:1]), shape, (1,))


DEPTHWISE_RULES: dict[str, LoweringRule] = {
    "aten.convolution.default": convolution,
    "aten.convolution_backward.default": convolution_gradient,
}
