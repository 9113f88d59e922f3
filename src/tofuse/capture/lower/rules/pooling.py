"""Rules for pooling, from slices of the image at each tap of a window, and for its gradients."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from tofuse.capture.lower.builder import Builder, Unsupported
from tofuse.capture.lower.call import AtenCall, LoweringRule
from tofuse.capture.lower.sliding_window import (
    Tap,
    WindowDimension,
    WindowGradient,
    axis_iotas,
    pooling_window,
    tap_slices,
)
from tofuse.ir.dims import Dim
from tofuse.ir.graph import Operand, Scalar, Value
from tofuse.ir.types import DType

MAX_IMAGE_ELEMENTS = 1 << 31  # indices are compared in 32 bits


def max_pool(call: AtenCall, rank: int) -> tuple[Value, ...]:
    """Return the maximum of each window, and its row-major index in the image."""
    values, indices = (call.type_of(t) for t in call.node.meta["val"])
    windows = pooling_window(call, values.shape, rank, "dilation")
    if not values.dtype.is_float:
        raise Unsupported("pooling of integers")
    if not call.reads_only_first:
        return _max_with_indices(call, windows)
    taps = tap_slices(call.build, call.tensor("self"), windows, float("-inf"))
    maxima = call.build.fold("maximum", (x for _, x in taps))
    return maxima, call.build.full(indices.shape, Scalar(0), indices.dtype)


def _max_with_indices(call: AtenCall, windows: tuple[WindowDimension, ...]) -> tuple[Value, ...]:
    """Return the maxima and their indices; a later element wins if it is larger or a NaN."""
    image, build = call.tensor("self"), call.build
    strides = _image_strides(image.shape[-len(windows) :])
    taps = tap_slices(build, image, windows, float("-inf"))
    _, best = next(taps)
    index = _first_valid_offsets(build, best.shape, windows, strides)
    for tap, x in taps:
        offset = sum(k * w.dilation * n for k, w, n in zip(tap, windows, strides, strict=True))
        larger = build.emit("gt", (x, best), {})
        better = build.emit("logical_or", (larger, build.emit("isnan", (x,), {})), {})
        best = build.emit("where", (better, x, best), {})
        index = build.emit("where", (better, Scalar(offset), index), {})
    window_starts = [
        (-w.padding_low * n, w.stride * n, w.count) for w, n in zip(windows, strides, strict=True)
    ]
    starts = axis_iotas(build, index.shape[: -len(windows)], window_starts)
    return best, build.convert(build.fold("add", (index, *starts)), DType.I64)


def _first_valid_offsets(
    build: Builder,
    shape: tuple[Dim, ...],
    windows: tuple[WindowDimension, ...],
    strides: Sequence[int],
) -> Value:
    """Return the offset from each window's start to its first element inside the image."""
    outer = shape[: -len(windows)]
    axes = [(w.padding_low, -w.stride, w.count) for w in windows]
    padding = axis_iotas(build, outer, axes)  # elements of each window before the image
    total = build.full(shape, Scalar(0), DType.I32)
    for w, elements, stride in zip(windows, padding, strides, strict=True):
        for offset in range(0, min(w.padding_low, w.size * w.dilation), w.dilation):
            outside = build.emit("gt", (elements, Scalar(offset)), {})
            operands = (outside, Scalar(w.dilation * stride), Scalar(0))
            step = build.emit("where", operands, {"dtype": DType.I32})
            total = build.emit("add", (total, step), {})
    return total


def _image_strides(extents: tuple[Dim, ...]) -> list[int]:
    """Return the row-major strides of an image of static sizes."""
    sizes = [n for n in extents if isinstance(n, int)]
    if len(sizes) < len(extents) or math.prod(sizes) > MAX_IMAGE_ELEMENTS:
        raise Unsupported("images of symbolic sizes, or too large")
    return [math.prod(sizes[d + 1 :]) for d in range(len(sizes))]


def max_pool_gradient(call: AtenCall, rank: int) -> Value:
    """Sum, for each element, the gradients of the windows whose maximum it is."""
    grad, out, build = call.tensor("grad_output"), call.out, call.build
    windows = pooling_window(call, grad.shape, rank, "dilation")
    _image_strides(out.shape[-rank:])
    dtype = out.dtype.opmath
    gradient = WindowGradient(call, call.node.meta["val"], windows, dtype)
    padded = gradient.pad_windows(build.convert(grad, dtype), 0.0)
    indices = gradient.pad_windows(build.convert(call.tensor("indices"), DType.I32), -1)

    def contribution(residue: Tap, _: Tap, windows: Callable[[Value], Value]) -> Value:
        is_maximum = build.emit("eq", (windows(indices), gradient.flat_indices(residue)), {})
        return build.emit("where", (is_maximum, windows(padded), Scalar(0.0)), {})

    return build.convert(gradient.sum_over_windows(contribution), out.dtype)


def avg_pool(call: AtenCall, rank: int) -> Value:
    """Return the windows' sums divided by their size, in float32 for half precision."""
    out, build = call.out, call.build
    windows = pooling_window(call, out.shape, rank)
    divisor = _divisor(call, windows, out.shape, out.dtype.opmath)
    x = build.convert(call.tensor("self"), out.dtype.opmath)
    total = build.fold("add", (tap_slice for _, tap_slice in tap_slices(build, x, windows, 0.0)))
    mean = build.emit("div", (total, divisor), {})
    return build.convert(mean, out.dtype)


def avg_pool_gradient(call: AtenCall, rank: int) -> Value:
    """Sum, for each element, the gradients of its windows divided by the windows' size."""
    grad, out, build = call.tensor("grad_output"), call.out, call.build
    windows = pooling_window(call, grad.shape, rank)
    dtype = out.dtype.opmath
    divisor = _divisor(call, windows, grad.shape, dtype)
    share = build.emit("div", (build.convert(grad, dtype), divisor), {})
    gradient = WindowGradient(call, call.node.meta["val"], windows, dtype)
    padded = gradient.pad_windows(share, 0.0)
    total = gradient.sum_over_windows(lambda residue, tap, windows: windows(padded))
    return build.convert(total, out.dtype)


def adaptive_avg_pool(call: AtenCall, rank: int) -> Value:
    """Return the means of disjoint windows of equal size."""
    x, out, build = call.tensor("self"), call.out, call.build
    sizes, dtype = _equal_window_sizes(x.shape[-rank:], out.shape[-rank:]), out.dtype.opmath
    outer = out.shape[:-rank]
    shape = (*outer, *_interleaved(out.shape[-rank:], sizes))
    window_dims = tuple(range(len(outer) + 1, len(shape), 2))
    total = build.reduce("sum", build.reshape(build.convert(x, dtype), shape), window_dims, dtype)
    mean = build.emit("div", (total, Scalar(float(math.prod(sizes)))), {})
    return build.convert(mean, out.dtype)


def adaptive_avg_pool_gradient(call: AtenCall, rank: int) -> Value:
    """Return, for each element, the gradient of its window divided by the window's size."""
    grad, out, build = call.tensor("grad_output"), call.out, call.build
    sizes = _equal_window_sizes(out.shape[-rank:], grad.shape[-rank:])
    outer, share = grad.shape[:-rank], build.convert(grad, out.dtype.opmath)
    share = build.emit("div", (share, Scalar(float(math.prod(sizes)))), {})
    shape = (*outer, *_interleaved(grad.shape[-rank:], sizes))
    spread = build.broadcast(share, shape, (*range(len(outer)), *range(len(outer), len(shape), 2)))
    return build.convert(build.reshape(spread, out.shape), out.dtype)


def _interleaved(counts: tuple[Dim, ...], sizes: Sequence[int]) -> tuple[Dim, ...]:
    return tuple(n for pair in zip(counts, sizes, strict=True) for n in pair)


def _equal_window_sizes(image: tuple[Dim, ...], pooled: tuple[Dim, ...]) -> list[int]:
    """Return the extent of the windows along each dimension."""
    found = []
    for extent, count in zip(image, pooled, strict=True):
        if not isinstance(extent, int) or not isinstance(count, int):
            raise Unsupported("symbolic sizes")
        if not count or not extent or extent % count:
            raise Unsupported("windows of several sizes")
        found.append(extent // count)
    return found


def _divisor(
    call: AtenCall, windows: tuple[WindowDimension, ...], shape: Sequence[Dim], dtype: DType
) -> Operand:
    """Return the elements of each window of a result of this shape, or `divisor_override`.

    Windows at the edges may have fewer: all of them if padding does not count, and those beyond
    the padding if `ceil_mode` adds them.
    """
    if not call.out.dtype.is_float:
        raise Unsupported("pooling of integers")
    if call.has("divisor_override"):
        return Scalar(float(call.integer("divisor_override")))
    counts_padding = call.flag("count_include_pad")
    extents = call.tensor("self").shape[-len(windows) :]
    padded = any(w.padding_low for w in windows) and not counts_padding
    if not padded and not (call.flag("ceil_mode") and any(w.padding_high for w in windows)):
        return Scalar(float(math.prod(w.size for w in windows)))
    build, outer = call.build, tuple(shape[: -len(windows)])
    axes = [(-w.padding_low, w.stride, w.count) for w in windows]
    sizes = []
    for w, extent, start in zip(windows, extents, axis_iotas(build, outer, axes), strict=True):
        if not isinstance(extent, int):
            raise Unsupported("symbolic sizes")
        bound = extent + w.padding_low if counts_padding else extent
        end = build.emit("add", (start, Scalar(w.size)), {})
        end = build.emit("minimum", (end, Scalar(bound)), {})
        if not counts_padding:
            start = build.emit("maximum", (start, Scalar(0)), {})
        sizes.append(build.emit("sub", (end, start), {}))
    return build.convert(build.fold("mul", sizes), dtype)


RULES_OF_RANK: dict[str, Callable[..., Value | tuple[Value, ...]]] = {
    "aten.max_pool{}d_with_indices": max_pool,
    "aten.max_pool{}d_with_indices_backward": max_pool_gradient,
    "aten.avg_pool{}d": avg_pool,
    "aten.avg_pool{}d_backward": avg_pool_gradient,
    "aten._adaptive_avg_pool{}d": adaptive_avg_pool,
    "aten._adaptive_avg_pool{}d_backward": adaptive_avg_pool_gradient,
}
POOLING_RULES: dict[str, LoweringRule] = {
    name.format(rank): functools.partial(rule, rank=rank)
    for name, rule in RULES_OF_RANK.items()
    for rank in (2, 3)
}
