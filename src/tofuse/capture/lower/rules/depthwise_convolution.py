"""Rules for depthwise convolutions: reads at offsets, each times a number of its channel."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from tofuse.capture.lower.builder import Builder
from tofuse.capture.lower.call import Call, Rule
from tofuse.capture.lower.sliding_window import (
    Gradient,
    Place,
    Windows,
    pieces,
    wide,
    windows_between,
)
from tofuse.ir.dims import Dim
from tofuse.ir.graph import Value


def convolution(call: Call) -> Value:
    """The sum over places of a window, in float32 for the halves, and the bias."""
    out, build, dtype = call.out, call.build, wide(call.out.dtype)
    x, weight = (build.convert(call.tensor(n), dtype) for n in ("input", "weight"))
    windows = _windows(call, x.shape, out.shape)
    total: Value | None = None
    for place, piece in zip(_places(windows), pieces(build, x, windows, 0.0), strict=True):
        product = build.emit("mul", (piece, _spread(build, weight, place, out.shape)), {})
        total = product if total is None else build.emit("add", (total, product), {})
    assert total is not None
    if call.given("bias"):
        bias = build.broadcast(build.convert(call.tensor("bias"), dtype), out.shape, (1,))
        total = build.emit("add", (total, bias), {})
    return build.convert(total, out.dtype)


def convolution_gradient(call: Call) -> tuple[Value | None, ...]:
    """That of the image, or that of the weight; the bias's is a sum of its own."""
    ofimage, _, _ = call.node.meta["val"]
    return (None, _of_weight(call), None) if ofimage is None else (_of_image(call), None, None)


def _of_image(call: Call) -> Value:
    """To each element, from all windows that it is in, by what each multiplied it with."""
    laid, build = call.node.meta["val"][0], call.build
    out = call.type_of(laid)
    dtype = wide(out.dtype)
    grad, weight = (build.convert(call.tensor(n), dtype) for n in ("grad_output", "weight"))
    windows = _windows(call, out.shape, grad.shape)
    gradient = Gradient(call, laid, windows, dtype)
    given = gradient.padded(grad, 0.0)

    def say(residue: Place, place: Place, of: Callable[[Value], Value]) -> Value:
        part = of(given)
        return build.emit("mul", (part, _spread(build, weight, place, part.shape)), {})

    return build.convert(gradient.gather(say), out.dtype)


def _of_weight(call: Call) -> Value:
    """For each place of a window, the sum over all windows of what it multiplied."""
    build, out = call.build, call.type_of(call.node.meta["val"][1])
    dtype = wide(out.dtype)
    grad, x = (build.convert(call.tensor(n), dtype) for n in ("grad_output", "input"))
    windows = _windows(call, x.shape, grad.shape)
    over = tuple(d for d in range(len(grad.shape)) if d != 1)
    sums = []
    for piece in pieces(build, x, windows, 0.0):
        product = build.emit("mul", (grad, piece), {})
        total = build.reduce("sum", product, over, dtype)
        sums.append(build.reshape(total, (*total.shape, 1)))
    return build.convert(build.reshape(build.cat(sums, 1), out.shape), out.dtype)


def _windows(call: Call, image: tuple[Dim, ...], result: tuple[Dim, ...]) -> tuple[Windows, ...]:
    rank = len(image) - 2

    def each(name: str) -> tuple[int, ...]:
        given = call.integers(name)
        return given if len(given) == rank else given * rank

    sizes = tuple(n for n in call.tensor("weight").shape[2:] if isinstance(n, int))
    form = sizes, each("stride"), each("dilation"), each("padding")
    return windows_between(image[2:], result[2:], *form, cut=True)


def _places(windows: tuple[Windows, ...]) -> list[Place]:
    return list(itertools.product(*(range(w.size) for w in windows)))


def _spread(build: Builder, weight: Value, place: Place, shape: tuple[Dim, ...]) -> Value:
    """What each channel's elements at a place are multiplied with."""
    for d, at in enumerate(place, 2):
        weight = build.slice(weight, d, at, 1)
    return build.broadcast(build.reshape(weight, weight.shape[:1]), shape, (1,))


DEPTHWISE: dict[str, Rule] = {
    "aten.convolution.default": convolution,
    "aten.convolution_backward.default": convolution_gradient,
}
