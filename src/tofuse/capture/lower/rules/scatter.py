"""Rules for ATen ops that write a part of a tensor: a slice or the elements of a mask."""

from __future__ import annotations

from tofuse.capture.fx.sizes import IntLike
from tofuse.capture.lower.builder import Unsupported, typed_scalar
from tofuse.capture.lower.call import AtenCall, LoweringRule
from tofuse.capture.lower.rules.view_ops import require_static, slice_start, torch_size
from tofuse.ir.dims import Dim
from tofuse.ir.graph import Value
from tofuse.ir.types import DType


def select_backward(call: AtenCall) -> Value:
    grad, sizes = call.tensor("grad_output"), call.sizes("input_sizes")
    dim = call.dim("dim", len(sizes))
    start = slice_start(call, "index", sizes[dim], _torch_extent(call, dim))
    one = call.build.reshape(grad, (*sizes[:dim], 1, *sizes[dim + 1 :]))
    return _pad_to(call, one, dim, start, sizes[dim])


def slice_backward(call: AtenCall) -> Value:
    grad, sizes = call.tensor("grad_output"), call.sizes("input_sizes")
    dim, step = call.dim("dim", len(sizes)), call.integer("step")
    extent = sizes[dim]
    start = slice_start(call, "start", extent, _torch_extent(call, dim))
    if isinstance(start, int) and isinstance(extent, int):
        start = min(start, extent)
    if step == 1 or grad.shape[dim] == 0:
        return _pad_to(call, grad, dim, start, extent)
    # the copy may have any strides
    first, width = require_static(start), require_static(extent)
    return call.build.copy(_pad_to_strided(call, grad, dim, first, step, width))


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
        return _overwrite_slice(call, x, source, dim, start)
    return call.build.copy(_overwrite_strided_slice(call, x, source, dim, start, step))


def masked_index_put(call: AtenCall) -> Value:
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


def _pad_to(call: AtenCall, x: Value, dim: int, start: Dim, extent: Dim) -> Value:
    """Pad `x` with zeros to an extent, with `x` at `start` of dimension `dim`."""
    after = extent + x.shape[dim] * -1 + start * -1
    rank = len(x.shape)
    low = tuple(start if k == dim else 0 for k in range(rank))
    high = tuple(after if k == dim else 0 for k in range(rank))
    return call.build.pad(x, low, high, typed_scalar(0, x.dtype))


def _pad_to_strided(
    call: AtenCall, x: Value, dim: int, start: int, step: int, extent: int
) -> Value:
    """Return zeros of an extent, with the elements of `x` at every `step`-th index from `start`.

    Each element is padded to a group of `step`; a last group beyond the extent is padded less.
    """
    build, count, phase = call.build, require_static(x.shape[dim]), start % step
    first = start - phase
    groups = count if first + count * step <= extent else count - 1
    elements = build.reshape(build.slice(x, dim, 0, groups), _split_dim(x.shape, dim, groups, 1))
    padded = build.reshape(
        _pad_to(call, elements, dim + 1, phase, step), _merge_dim(x.shape, dim, groups * step)
    )
    if groups < count:
        rest = extent - first - groups * step
        last = _pad_to(call, build.slice(x, dim, groups, 1), dim, phase, rest)
        padded = build.cat([t for t in (padded, last) if t.shape[dim] != 0], dim)
    return _pad_to(call, padded, dim, first, extent)


def _overwrite_slice(call: AtenCall, x: Value, source: Value, dim: int, start: int) -> Value:
    """Return `x` with `source` at `start` of dimension `dim`."""
    width, extent = require_static(source.shape[dim]), require_static(x.shape[dim])
    operands = (
        call.build.slice(x, dim, 0, start),
        source,
        call.build.slice(x, dim, start + width, extent - start - width),
    )
    return call.build.cat([t for t in operands if t.shape[dim] != 0], dim)


def _overwrite_strided_slice(
    call: AtenCall, x: Value, source: Value, dim: int, start: int, step: int
) -> Value:
    """Return `x` with `source` at every `step`-th index from `start`, in groups as above."""
    build, count, phase = call.build, require_static(source.shape[dim]), start % step
    first, extent = start - phase, require_static(x.shape[dim])
    groups = count if first + count * step <= extent else count - 1
    middle = build.slice(x, dim, first, groups * step)
    old = build.reshape(middle, _split_dim(x.shape, dim, groups, step))
    elements = build.slice(source, dim, 0, groups)
    elements = build.reshape(elements, _split_dim(x.shape, dim, groups, 1))
    new = build.reshape(_overwrite_slice(call, old, elements, dim + 1, phase), middle.shape)
    rest = build.slice(x, dim, first + groups * step, extent - first - groups * step)
    if groups < count:
        rest = _overwrite_slice(call, rest, build.slice(source, dim, groups, 1), dim, phase)
    operands = (build.slice(x, dim, 0, first), new, rest)
    return build.cat([t for t in operands if t.shape[dim] != 0], dim)


def _split_dim(shape: tuple[Dim, ...], dim: int, outer: int, inner: int) -> tuple[Dim, ...]:
    return (*shape[:dim], outer, inner, *shape[dim + 1 :])


def _merge_dim(shape: tuple[Dim, ...], dim: int, extent: int) -> tuple[Dim, ...]:
    return (*shape[:dim], extent, *shape[dim + 1 :])


SCATTER_RULES: dict[str, LoweringRule] = {
    "aten.select_backward": select_backward,
    "aten.slice_backward": slice_backward,
    "aten.slice_scatter": slice_scatter,
    "aten.index_put": masked_index_put,
}
