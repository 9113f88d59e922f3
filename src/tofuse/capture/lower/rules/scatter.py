"""Rules for ATen ops that write a part of a tensor: a slice or the elements of a mask."""

from __future__ import annotations

import functools

from tofuse.capture.fx.sizes import IntLike
from tofuse.capture.lower.builder import Unsupported, typed_scalar
from tofuse.capture.lower.call import AtenCall, LoweringRule
from tofuse.capture.lower.rules.scatter_reduce import add_by_index
from tofuse.capture.lower.rules.view_ops import require_static, slice_start, torch_size
from tofuse.ir.dims import Dim
from tofuse.ir.graph import Value
from tofuse.ir.types import DType


def select_backward(call: AtenCall) -> Value:
    grad, sizes = call.tensor("grad_output"), call.sizes("input_sizes")
    dim = call.dim("dim", len(sizes))
    start = slice_start(call, "index", sizes[dim], _torch_extent(call, dim))
    one = call.build.reshape(grad, _replace_dim(sizes, dim, 1))
    return _place(call, [one], dim, start, sizes[dim])


def slice_backward(call: AtenCall) -> Value:
    grad, sizes = call.tensor("grad_output"), call.sizes("input_sizes")
    dim, step = call.dim("dim", len(sizes)), call.integer("step")
    extent = sizes[dim]
    start = slice_start(call, "start", extent, _torch_extent(call, dim))
    if isinstance(start, int) and isinstance(extent, int):
        start = min(start, extent)
    if step == 1 or grad.shape[dim] == 0:
        return _place(call, [grad], dim, start, extent)
    # the copy may have any strides
    first, width = require_static(start), require_static(extent)
    return call.build.copy(_place_strided(call, grad, dim, first, step, width))


def slice_scatter(call: AtenCall) -> Value:
    x = call.tensor("self")
    source = call.build.convert(call.tensor("src"), x.dtype)
    dim, step = call.dim("dim", len(x.shape)), call.integer("step")
    extent = require_static(x.shape[dim])
    start = call.integer("start") if call.has("start") else 0
    start = slice(start, None).indices(extent)[0]  # inside
    if extent == 0:
        return x
    if step == 1 or require_static(source.shape[dim]) == 0:
        return _place(call, [source], dim, start, extent, x)
    return call.build.copy(_place_strided(call, source, dim, start, step, extent, x))


def index_put(call: AtenCall) -> Value:
    """Lower `x[mask] = y`, or `x[index] += y`."""
    indices = call.optional_tensors("indices")
    is_mask = len(indices) == 1 and indices[0] is not None and indices[0].dtype == DType.BOOL
    return _masked_index_put(call) if is_mask else add_by_index(call)


def _masked_index_put(call: AtenCall) -> Value:
    """Lower `x[mask] = y`, where y is one number, or one row for all masked positions."""
    x, y = call.tensor("self"), call.tensor("values")
    indices = call.optional_tensors("indices")
    mask = indices[0] if len(indices) == 1 else None
    if mask is None or mask.dtype != DType.BOOL or y.dtype != x.dtype:
        raise Unsupported("an index that is no mask")
    mask_rank, rank = len(mask.shape), len(x.shape)
    if y.shape not in ((), (1,)) and len(y.shape) > rank - mask_rank:
        raise Unsupported("a value for each masked position")
    new = call.build.expand(call.build.reshape(y, ()) if y.shape == (1,) else y, x.shape)
    if call.arguments.get("accumulate"):
        new = call.build.emit("add", (x, new), {})
    mask = call.build.broadcast(mask, x.shape, tuple(range(mask_rank)))
    return call.build.emit("where", (mask, new, x), {})


def _torch_extent(call: AtenCall, dim: int) -> IntLike:
    sizes = call.fx_arguments["input_sizes"]
    assert isinstance(sizes, (list, tuple))
    return torch_size(sizes[dim])


def _place(
    call: AtenCall, parts: list[Value], dim: int, start: Dim, extent: Dim, old: Value | None = None
) -> Value:
    """Return `old`, or zeros of an extent, with `parts` written from `start` of dimension `dim`."""
    build = call.build
    if old is not None:
        end = sum((part.shape[dim] for part in parts), start)
        before, after = build.slice(old, dim, 0, start), build.slice(old, dim, end, extent - end)
        return build.cat([t for t in (before, *parts, after) if t.shape[dim] != 0], dim)
    x = build.cat(parts, dim)
    after_end = extent + x.shape[dim] * -1 + start * -1
    zeros = (0,) * len(x.shape)
    low, high = (_replace_dim(zeros, dim, n) for n in (start, after_end))
    return build.pad(x, low, high, typed_scalar(0, x.dtype))


def _place_strided(
    call: AtenCall,
    x: Value,
    dim: int,
    start: int,
    step: int,
    extent: int,
    old: Value | None = None,
) -> Value:
    """Return `old` or zeros, with the elements of `x` at every `step`-th index from `start`.

    Each element is written into a group of `step`; a last group beyond the extent is shorter.
    """
    build, count, phase = call.build, require_static(x.shape[dim]), start % step
    first, parts = start - phase, list[Value]()
    groups = count if first + count * step <= extent else count - 1
    end = first + groups * step
    if groups:
        split = functools.partial(_replace_dim, x.shape, dim)
        elements = build.reshape(build.slice(x, dim, 0, groups), split(groups, 1))
        middle = old and build.reshape(
            build.slice(old, dim, first, groups * step), split(groups, step)
        )
        placed = _place(call, [elements], dim + 1, phase, step, middle)
        parts.append(build.reshape(placed, split(groups * step)))
    if groups < count:
        rest = old and build.slice(old, dim, end, extent - end)
        last = build.slice(x, dim, groups, 1)
        parts.append(_place(call, [last], dim, phase, extent - end, rest))
    return _place(call, parts, dim, first, extent, old)


def _replace_dim(shape: tuple[Dim, ...], dim: int, *extents: Dim) -> tuple[Dim, ...]:
    return (*shape[:dim], *extents, *shape[dim + 1 :])


SCATTER_RULES: dict[str, LoweringRule] = {
    "aten.select_backward": select_backward,
    "aten.slice_backward": slice_backward,
    "aten.slice_scatter": slice_scatter,
    "aten.index_put": index_put,
}
