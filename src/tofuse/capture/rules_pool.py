"""Rules for pooling: reads at offsets, one for each place of a window."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from dataclasses import dataclass

from torch.fx import Node

from tofuse.capture.builder import Refused
from tofuse.capture.call import Call, Rule
from tofuse.ir.dims import Dim
from tofuse.ir.graph import Scalar, Value
from tofuse.ir.types import DType

MOST_PLACES = 25  # of a window; each is a read and an operation


@dataclass(frozen=True)
class _Windows:
    """Along one dimension: `size` elements a window, `gap` apart, `step` from window to window;
    `low` and `high` elements are added before the first and after the last."""

    size: int
    step: int
    gap: int
    low: int
    high: int
    count: Dim


def asks_places(node: Node) -> bool:
    """Whether a call's results beside the first are read."""
    return any(u.target is not operator.getitem or u.args[1] != 0 for u in node.users)


def max_pool(call: Call) -> tuple[Value, ...]:
    """The largest of each window. Where each is, PyTorch's own operator finds out."""
    if asks_places(call.node):
        raise Refused("where the largest values are is asked for too")
    values, places = (call.type_of(t) for t in call.node.meta["val"])
    gaps = _pair(call.integers("dilation"))
    windows = _windows(call, values.shape, gaps, call.flag("ceil_mode"))
    if not values.dtype.is_float:
        raise Refused("the pooled values are no floats")
    best: Value | None = None
    for piece in _pieces(call, call.tensor("self"), windows, float("-inf")):
        best = piece if best is None else call.build.emit("maximum", (best, piece), {})
    assert best is not None
    unread = call.build.full(places.shape, Scalar(0), places.dtype)
    return best, unread


def avg_pool(call: Call) -> Value:
    """The sums of the windows over their sizes, in float32 for the halves."""
    x, out = call.tensor("self"), call.out
    windows = _windows(call, out.shape, (1, 1), call.flag("ceil_mode"))
    padded = any(w.low for w in windows) and not call.flag("count_include_pad")
    beyond = call.flag("ceil_mode") and any(w.high for w in windows)
    own = call.given("divisor_override")
    if not own and (padded or beyond):
        raise Refused("windows of several sizes")
    if not out.dtype.is_float:
        raise Refused("the pooled values are no floats")
    dtype = DType.F32 if out.dtype.is_half else out.dtype
    total: Value | None = None
    for piece in _pieces(call, call.build.convert(x, dtype), windows, 0.0):
        total = piece if total is None else call.build.emit("add", (total, piece), {})
    assert total is not None
    count = call.integer("divisor_override") if own else windows[0].size * windows[1].size
    mean = call.build.emit("div", (total, Scalar(float(count))), {})
    return call.build.convert(mean, out.dtype)


def _windows(
    call: Call, shape: tuple[Dim, ...], gaps: tuple[int, int], ceil: bool
) -> tuple[_Windows, _Windows]:
    """The windows along the last two dimensions."""
    sizes = _pair(call.integers("kernel_size"))
    steps = _pair(call.integers("stride") or call.integers("kernel_size"))
    lows = _pair(call.integers("padding"))
    if sizes[0] * sizes[1] > MOST_PLACES:
        raise Refused(f"a window has more than {MOST_PLACES} places")
    extents = call.tensor("self").shape[-2:]
    found = []
    for extent, count, size, step, gap, low in zip(
        extents, shape[-2:], sizes, steps, gaps, lows, strict=True
    ):
        reach = (count + -1) * step + (size - 1) * gap + 1
        high = reach + extent * -1 + -low
        if not isinstance(high, int) and (low or ceil):
            raise Refused("sizes that are not fixed")
        found.append(
            _Windows(size, step, gap, low, max(0, high) if isinstance(high, int) else 0, count)
        )
    return found[0], found[1]


def _pieces(
    call: Call, x: Value, windows: tuple[_Windows, _Windows], fill: float
) -> Iterator[Value]:
    """What is at each place of all windows, in the order in which PyTorch goes."""
    rank = len(x.shape)
    before, after = ([0] * (rank - 2) for _ in range(2))
    for w in windows:
        before.append(w.low)
        after.append(w.high)
    x = call.build.pad(x, tuple(before), tuple(after), Scalar(fill))
    for places in itertools.product(*(range(w.size) for w in windows)):
        piece = x
        for d, (place, w) in enumerate(zip(places, windows, strict=True), rank - 2):
            piece = call.build.slice(piece, d, place * w.gap, w.count, w.step)
        yield piece


def _pair(numbers: tuple[int, ...]) -> tuple[int, int]:
    return numbers[0], numbers[-1]


POOLING: dict[str, Rule] = {
    "aten.max_pool2d_with_indices": max_pool,
    "aten.avg_pool2d": avg_pool,
}
