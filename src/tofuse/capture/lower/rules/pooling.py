"""Rules for pooling: reads at offsets, one for each place of a window; and their gradients."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence

from torch.fx import Node

from tofuse.capture.lower.builder import Builder, Refused
from tofuse.capture.lower.call import Call, Rule
from tofuse.capture.lower.sliding_window import (
    Gradient,
    Place,
    Windows,
    numbers,
    pieces,
    wide,
    windows_of,
)
from tofuse.ir.dims import Dim
from tofuse.ir.graph import Scalar, Value
from tofuse.ir.types import DType

MOST_ELEMENTS = 1 << 31  # of an image, whose places are compared in 32 bits


def max_pool(call: Call, rank: int) -> tuple[Value, ...]:
    """The largest of each window, and where it is in the image, row by row."""
    values, places = (call.type_of(t) for t in call.node.meta["val"])
    windows = windows_of(call, values.shape, rank, "dilation")
    if not values.dtype.is_float:
        raise Refused("the pooled values are no floats")
    if _asks_places(call.node):
        return _with_places(call, windows)
    best: Value | None = None
    for piece in pieces(call.build, call.tensor("self"), windows, float("-inf")):
        best = piece if best is None else call.build.emit("maximum", (best, piece), {})
    assert best is not None
    return best, call.build.full(places.shape, Scalar(0), places.dtype)


def _asks_places(node: Node) -> bool:
    return any(u.target is not operator.getitem or u.args[1] != 0 for u in node.users)


def _with_places(call: Call, windows: tuple[Windows, ...]) -> tuple[Value, ...]:
    """A later value takes the place of the best if it is larger, or a NaN."""
    x, build = call.tensor("self"), call.build
    scales = _scales(x.shape[-len(windows) :])
    offsets = itertools.product(
        *([k * w.gap * n for k in range(w.size)] for w, n in zip(windows, scales, strict=True))
    )
    best: Value | None = None
    for piece, at in zip(pieces(build, x, windows, float("-inf")), offsets, strict=True):
        if best is None:
            best, place = piece, _first_places(build, piece.shape, windows, scales)
            continue
        offset = Scalar(sum(at))
        larger = build.emit("gt", (piece, best), {})
        better = build.emit("logical_or", (larger, build.emit("isnan", (piece,), {})), {})
        best = build.emit("where", (better, piece, best), {})
        place = build.emit("where", (better, offset, place), {})
    assert best is not None
    corners = [(-w.low * n, w.step * n, w.count) for w, n in zip(windows, scales, strict=True)]
    for begin in numbers(build, place.shape[: -len(windows)], corners):
        place = build.emit("add", (place, begin), {})
    return best, build.convert(place, DType.I64)


def _first_places(
    build: Builder, shape: tuple[Dim, ...], windows: tuple[Windows, ...], scales: Sequence[int]
) -> Value:
    """How far behind its begin the first place of each window lies that is in the image."""
    outer = shape[: -len(windows)]
    outside = numbers(build, outer, [(w.low, -w.step, w.count) for w in windows])
    total = build.full(shape, Scalar(0), DType.I32)
    for w, elements, scale in zip(windows, outside, scales, strict=True):
        for place in range(0, min(w.low, w.size * w.gap), w.gap):
            beyond = build.emit("gt", (elements, Scalar(place)), {})
            step = (beyond, Scalar(w.gap * scale), Scalar(0))
            further = build.emit("where", step, {"dtype": DType.I32})
            total = build.emit("add", (total, further), {})
    return total


def _scales(extents: tuple[Dim, ...]) -> list[int]:
    """How far apart neighbours along each dimension are in an image."""
    fixed = [n for n in extents if isinstance(n, int)]
    if len(fixed) < len(extents) or math.prod(fixed) > MOST_ELEMENTS:
        raise Refused("images of sizes that are not fixed, or too large")
    return [math.prod(fixed[d + 1 :]) for d in range(len(fixed))]


def max_pool_gradient(call: Call, rank: int) -> Value:
    """To each element, from all windows whose largest value it is."""
    grad, out, build = call.tensor("grad_output"), call.out, call.build
    windows = windows_of(call, grad.shape, rank, "dilation")
    _scales(out.shape[-rank:])
    dtype = wide(out.dtype)
    gradient = Gradient(call, call.node.meta["val"], windows, dtype)
    given = gradient.padded(build.convert(grad, dtype), 0.0)
    places = gradient.padded(build.convert(call.tensor("indices"), DType.I32), -1)

    def say(residue: Place, _: Place, of: Callable[[Value], Value]) -> Value:
        hit = build.emit("eq", (of(places), gradient.positions(residue)), {})
        return build.emit("where", (hit, of(given), Scalar(0.0)), {})

    return build.convert(gradient.gather(say), out.dtype)


def avg_pool(call: Call, rank: int) -> Value:
    """The sums of the windows over their sizes, in float32 for the halves."""
    out, build = call.out, call.build
    windows = windows_of(call, out.shape, rank)
    count = _divisor(call, windows)
    x = build.convert(call.tensor("self"), wide(out.dtype))
    total: Value | None = None
    for piece in pieces(build, x, windows, 0.0):
        total = piece if total is None else build.emit("add", (total, piece), {})
    assert total is not None
    mean = build.emit("div", (total, Scalar(float(count))), {})
    return build.convert(mean, out.dtype)


def avg_pool_gradient(call: Call, rank: int) -> Value:
    """To each element, from all windows it is in, what they give to each of theirs."""
    grad, out, build = call.tensor("grad_output"), call.out, call.build
    windows = windows_of(call, grad.shape, rank)
    count = _divisor(call, windows)
    dtype = wide(out.dtype)
    share = build.emit("div", (build.convert(grad, dtype), Scalar(float(count))), {})
    gradient = Gradient(call, call.node.meta["val"], windows, dtype)
    shares = gradient.padded(share, 0.0)
    return build.convert(gradient.gather(lambda residue, place, of: of(shares)), out.dtype)


def adaptive_avg_pool(call: Call, rank: int) -> Value:
    """The means of windows that all have one size: no element lies in two."""
    x, out, build = call.tensor("self"), call.out, call.build
    steps, dtype = _whole_steps(x.shape[-rank:], out.shape[-rank:]), wide(out.dtype)
    outer = out.shape[:-rank]
    shape = (*outer, *_interleaved(out.shape[-rank:], steps))
    inside = tuple(range(len(outer) + 1, len(shape), 2))
    total = build.reduce("sum", build.reshape(build.convert(x, dtype), shape), inside, dtype)
    mean = build.emit("div", (total, Scalar(float(math.prod(steps)))), {})
    return build.convert(mean, out.dtype)


def adaptive_avg_pool_gradient(call: Call, rank: int) -> Value:
    """To each element its share of its window's."""
    grad, out, build = call.tensor("grad_output"), call.out, call.build
    steps, dtype = _whole_steps(out.shape[-rank:], grad.shape[-rank:]), wide(out.dtype)
    outer = grad.shape[:-rank]
    share = build.convert(grad, dtype)
    share = build.emit("div", (share, Scalar(float(math.prod(steps)))), {})
    shape = (*outer, *_interleaved(grad.shape[-rank:], steps))
    spread = build.broadcast(share, shape, (*range(len(outer)), *range(len(outer), len(shape), 2)))
    return build.convert(build.reshape(spread, out.shape), out.dtype)


def _interleaved(counts: tuple[Dim, ...], steps: Sequence[int]) -> tuple[Dim, ...]:
    return tuple(n for pair in zip(counts, steps, strict=True) for n in pair)


def _whole_steps(image: tuple[Dim, ...], pooled: tuple[Dim, ...]) -> list[int]:
    """Elements a window along each dimension."""
    found = []
    for extent, count in zip(image, pooled, strict=True):
        if not isinstance(extent, int) or not isinstance(count, int):
            raise Refused("sizes that are not fixed")
        if not count or not extent or extent % count:
            raise Refused("windows of several sizes")
        found.append(extent // count)
    return found


def _divisor(call: Call, windows: tuple[Windows, ...]) -> int:
    """The size of every window, or what is given in its place."""
    if not call.out.dtype.is_float:
        raise Refused("the pooled values are no floats")
    if call.given("divisor_override"):
        return call.integer("divisor_override")
    padded = any(w.low for w in windows) and not call.flag("count_include_pad")
    if padded or (call.flag("ceil_mode") and any(w.high for w in windows)):
        raise Refused("windows of several sizes")
    return math.prod(w.size for w in windows)


RANKED: dict[str, Callable[..., Value | tuple[Value, ...]]] = {
    "aten.max_pool{}d_with_indices": max_pool,
    "aten.max_pool{}d_with_indices_backward": max_pool_gradient,
    "aten.avg_pool{}d": avg_pool,
    "aten.avg_pool{}d_backward": avg_pool_gradient,
    "aten._adaptive_avg_pool{}d": adaptive_avg_pool,
    "aten._adaptive_avg_pool{}d_backward": adaptive_avg_pool_gradient,
}
POOLING: dict[str, Rule] = {
    name.format(rank): functools.partial(rule, rank=rank)
    for name, rule in RANKED.items()
    for rank in (2, 3)
}
