"""Rules for ATen ops that write a part of a tensor: a slice, or what a mask picks."""

from __future__ import annotations

from tofuse.capture.fx.sizes import Sized
from tofuse.capture.lower.builder import Refused
from tofuse.capture.lower.call import Call, Rule
from tofuse.capture.lower.rules.view_ops import (
    fixed,
    known,
    place,
    position,
)
from tofuse.ir.dims import Dim
from tofuse.ir.graph import Scalar, Value
from tofuse.ir.types import DType


def select_backward(call: Call) -> Value:
    grad, sizes = call.tensor("grad_output"), call.sizes("input_sizes")
    dim = call.dim("dim", len(sizes))
    start = place(call.arguments["index"], known(call.node.args[3]), _extent(call, dim), sizes[dim])
    one = call.build.reshape(grad, (*sizes[:dim], 1, *sizes[dim + 1 :]))
    return _place(call, one, dim, start, sizes[dim])


def slice_backward(call: Call) -> Value:
    grad, sizes = call.tensor("grad_output"), call.sizes("input_sizes")
    dim, step = call.dim("dim", len(sizes)), call.integer("step")
    extent = sizes[dim]
    start = place(call.arguments["start"], known(call.node.args[3]), _extent(call, dim), extent)
    if isinstance(start, int) and isinstance(extent, int):
        start = min(start, extent)
    if step == 1 or grad.shape[dim] == 0:
        placed = _place(call, grad, dim, start, extent)
    else:  # no view: it may lie in any order
        gaps = _place_with_gaps(call, grad, dim, fixed(start), step, fixed(extent))
        return call.build.copy(gaps)
    return call.build.copy(placed) if placed is grad else placed


def slice_scatter(call: Call) -> Value:
    x = call.tensor("self")
    source = call.build.convert(call.tensor("src"), x.dtype)
    dim, step = call.dim("dim", len(x.shape)), call.integer("step")
    extent = fixed(x.shape[dim])
    start = call.integer("start") if call.given("start") else 0
    start = min(max(0, position(start, extent) if start < 0 else start), extent)
    if extent == 0:
        return call.build.copy(x)
    if step == 1 or fixed(source.shape[dim]) == 0:
        joined = _write(call, x, source, dim, start)
    else:
        return call.build.copy(_write_with_gaps(call, x, source, dim, start, step))
    return call.build.copy(joined) if joined in (x, source) else joined


def masked_put(call: Call) -> Value:
    """`x[mask] = y`, where y is one number or one row for every place."""
    x, y, picked = call.tensor("self"), call.tensor("values"), call.arguments["indices"]
    mask = picked[0] if isinstance(picked, (list, tuple)) and len(picked) == 1 else None
    if not isinstance(mask, Value) or mask.dtype != DType.BOOL or y.dtype != x.dtype:
        raise Refused("places that no mask gives")
    width, rank = len(mask.shape), len(x.shape)
    if y.shape not in ((), (1,)) and len(y.shape) > rank - width:
        raise Refused("a value for each place")
    new = call.build.expand(call.build.reshape(y, ()) if y.shape == (1,) else y, x.shape)
    if call.arguments.get("accumulate"):
        new = call.build.emit("add", (x, new), {})
    wide = call.build.broadcast(mask, x.shape, tuple(range(width)))
    return call.build.emit("where", (wide, new, x), {})


def _extent(call: Call, dim: int) -> Sized:
    """Of `input_sizes`."""
    sizes = call.node.args[1]
    assert isinstance(sizes, (list, tuple))
    return known(sizes[dim])


def _place(call: Call, x: Value, dim: int, start: Dim, extent: Dim) -> Value:
    """Zeros of this extent, with `x` at `start` of dimension `dim`."""
    after = extent + x.shape[dim] * -1 + start * -1
    rank = len(x.shape)
    low = tuple(start if k == dim else 0 for k in range(rank))
    high = tuple(after if k == dim else 0 for k in range(rank))
    return call.build.pad(x, low, high, Scalar(0.0 if x.dtype.is_float else 0))


def _place_with_gaps(call: Call, x: Value, dim: int, start: int, step: int, extent: int) -> Value:
    """Zeros of this extent, with the elements of `x` at every `step`-th place from `start` on.

    Each element goes into a group of `step`; a last group that the extent cuts off goes alone.
    """
    build, count, phase = call.build, fixed(x.shape[dim]), start % step
    first = start - phase
    groups = count if first + count * step <= extent else count - 1
    one = build.reshape(build.slice(x, dim, 0, groups), _split(x.shape, dim, groups, 1))
    placed = build.reshape(
        _place(call, one, dim + 1, phase, step), _joined(x.shape, dim, groups * step)
    )
    if groups < count:
        rest = extent - first - groups * step
        alone = _place(call, build.slice(x, dim, groups, 1), dim, phase, rest)
        placed = build.cat([p for p in (placed, alone) if p.shape[dim] != 0], dim)
    return _place(call, placed, dim, first, extent)


def _write(call: Call, x: Value, source: Value, dim: int, start: int) -> Value:
    """`x` with `source` at `start` of dimension `dim`."""
    width, extent = fixed(source.shape[dim]), fixed(x.shape[dim])
    parts = (
        call.build.slice(x, dim, 0, start),
        source,
        call.build.slice(x, dim, start + width, extent - start - width),
    )
    return call.build.cat([p for p in parts if p.shape[dim] != 0], dim)


def _write_with_gaps(call: Call, x: Value, source: Value, dim: int, start: int, step: int) -> Value:
    """`x` with `source` at every `step`-th place from `start` on, group by group as above."""
    build, count, phase = call.build, fixed(source.shape[dim]), start % step
    first, extent = start - phase, fixed(x.shape[dim])
    groups = count if first + count * step <= extent else count - 1
    middle = build.slice(x, dim, first, groups * step)
    old = build.reshape(middle, _split(x.shape, dim, groups, step))
    one = build.reshape(build.slice(source, dim, 0, groups), _split(x.shape, dim, groups, 1))
    new = build.reshape(_write(call, old, one, dim + 1, phase), middle.shape)
    rest = build.slice(x, dim, first + groups * step, extent - first - groups * step)
    if groups < count:
        rest = _write(call, rest, build.slice(source, dim, groups, 1), dim, phase)
    parts = (build.slice(x, dim, 0, first), new, rest)
    return build.cat([p for p in parts if p.shape[dim] != 0], dim)


def _split(shape: tuple[Dim, ...], dim: int, outer: int, inner: int) -> tuple[Dim, ...]:
    return (*shape[:dim], outer, inner, *shape[dim + 1 :])


def _joined(shape: tuple[Dim, ...], dim: int, extent: int) -> tuple[Dim, ...]:
    return (*shape[:dim], extent, *shape[dim + 1 :])


SCATTERS: dict[str, Rule] = {
    "aten.select_backward": select_backward,
    "aten.slice_backward": slice_backward,
    "aten.slice_scatter": slice_scatter,
    "aten.index_put": masked_put,
}
