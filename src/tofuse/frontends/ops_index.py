"""Ops that pick elements by index, as torch's; and sorting."""

from __future__ import annotations

from tofuse.frontends.datatypes import DataType
from tofuse.frontends.lowering import Given, Lowering, Node, Number, Rule
from tofuse.ir.dims import Dim, SymDim, show_dim
from tofuse.ir.graph import Value
from tofuse.ir.types import DType


def index_select(low: Lowering, arg: Given, index: Given, dim: Given) -> Node:
    """Whole slices along one dimension, picked by a 1-d (or 0-d) tensor of integers."""
    x, where = low.tensor(arg), _indices(low, index)
    at = low.axis(dim, x.rank)
    if where.rank > 1 or not x.rank:
        raise low.fail(f"an index of rank {where.rank} for a tensor of rank {x.rank}")
    picks = low.build.reshape(where.value, (1,)) if where.rank == 0 else where.value
    shape = (*x.shape[:at], picks.shape[0], *x.shape[at + 1 :])
    if _plain(x):
        wide = low.build.broadcast(picks, shape, (at,))
        return _take(low, x, x.value, wide, at)
    text = f"$0, {at}, $1"
    return _opaque(low, "aten.index_select.default", text, (x.value, picks), shape, x.dtype)


def select(low: Lowering, arg: Given, index: Given, dim: Given) -> Node:
    """One slice along a dimension, which goes away."""
    x, at = low.tensor(arg), low.axis(dim, low.tensor(arg).rank)
    shape = (*x.shape[:at], *x.shape[at + 1 :])
    number = low.operand(index)
    if isinstance(number, Number):
        k, extent = low.dim(number, "the index"), x.shape[at]
        if isinstance(k, int) and k < 0 and isinstance(extent, int):
            k += extent
        if isinstance(k, int) and isinstance(extent, int) and not 0 <= k < extent:
            raise low.fail(f"the index {k} is outside dimension {at} of {extent}")
        if isinstance(k, int) and k >= 0 and isinstance(extent, int):
            one = low.build.slice(x.value, at, k, 1)
            return low.node(low.build.reshape(one, shape), x.dtype)
        text = f"$0, {at}, {show_dim(k)}"
        return _opaque(low, "aten.select.int", text, (x.value,), shape, x.dtype)
    picked = index_select(low, x, number, at)
    return low.node(low.build.reshape(picked.value, shape), x.dtype)


def gather(low: Lowering, arg: Given, index: Given, dim: Given) -> Node:
    """torch.gather: the index may be smaller than the operand in the other dimensions."""
    x, where = low.tensor(arg), _indices(low, index)
    at = _along(low, x, where, dim)
    others = [d for d in range(x.rank) if d != at]
    fixed = all(isinstance(e, int) for d in others for e in (x.shape[d], where.shape[d]))
    for d in others:
        a, b = x.shape[d], where.shape[d]
        if isinstance(a, int) and isinstance(b, int) and b > a:
            raise low.fail(f"the index has {b} entries at dimension {d}, where there are {a}")
    if _plain(x) and (fixed or all(x.shape[d] == where.shape[d] for d in others)):
        value = x.value
        for d in others:
            value = low.build.slice(value, d, 0, where.shape[d])
        return _take(low, x, value, where.value, at)
    text = f"$0, {at}, $1"
    return _opaque(
        low, "aten.gather.default", text, (x.value, _wide(low, where)), where.shape, x.dtype
    )


def take_along_axis(low: Lowering, arg: Given, index: Given, dim: Given) -> Node:
    """As numpy's: in the other dimensions the two are equal, or one of them is 1."""
    x, where = low.tensor(arg), _indices(low, index)
    at = _along(low, x, where, dim)
    for d in range(x.rank):
        if d != at and 1 not in (x.shape[d], where.shape[d]):
            low.equal(x.shape[d], where.shape[d], f"the tensor and the index at dimension {d}")
    wide_x, wide_index = list(x.shape), list(where.shape)
    for d in range(x.rank):
        if d != at:
            wide_x[d] = wide_index[d] = where.shape[d] if x.shape[d] == 1 else x.shape[d]
    source = low.build.expand(x.value, tuple(wide_x))
    picks = low.build.expand(_claimed(low, where, wide_index), tuple(wide_index))
    if _plain(x):
        return _take(low, x, source, picks, at)
    text = f"$0, {at}, $1"
    operands = (source, low.build.convert(picks, DType.I64))
    return _opaque(low, "aten.gather.default", text, operands, tuple(wide_index), x.dtype)


def _claimed(low: Lowering, where: Node, wide: list[Dim]) -> Value:
    """The index with extents that its tensor has too, where only a run can tell."""
    shape = tuple(e if e == 1 else w for e, w in zip(where.shape, wide, strict=True))
    return low.claim(where.value, shape, where.dtype)


def scatter(low: Lowering, arg1: Given, index: Given, src: Given, dim: Given) -> Node:
    """torch.scatter: a copy with `src` written at the places that the index names."""
    x, where = low.tensor(arg1), _indices(low, index)
    at, source = _along(low, x, where, dim), low.operand(src)
    places = _wide(low, where)
    if isinstance(source, Node) and source.rank:
        if source.rank != x.rank:
            raise low.fail(f"src has rank {source.rank} for a tensor of rank {x.rank}")
        written = low.convert(source.value, source.dtype, x.dtype)
        operands = tuple(dict.fromkeys((x.value, places, written)))
        text = f"$0, {at}, $1, ${operands.index(written)}"
        return _opaque(low, "aten.scatter.src", text, operands, x.shape, x.dtype)
    if isinstance(source, Node):
        raise low.fail("src must be a tensor or a constant")
    value = show_dim(source.value) if isinstance(source.value, SymDim) else repr(source.value)
    text = f"$0, {at}, $1, {value}"
    return _opaque(low, "aten.scatter.value", text, (x.value, places), x.shape, x.dtype)


def topk(
    low: Lowering,
    arg: Given,
    k: Given,
    dim: Given = -1,
    largest: bool = True,
    sorted: bool = False,
) -> list[Node]:
    """The k largest or smallest along a dimension, and where they are."""
    x, count = low.tensor(arg), low.dim(k, "k")
    at = low.axis(dim, x.rank)
    extent = x.shape[at] if x.rank else 1
    if isinstance(count, int) and isinstance(extent, int) and not 0 <= count <= extent:
        raise low.fail(f"k is {count} for an extent of {extent}")
    shape = (*x.shape[:at], count, *x.shape[at + 1 :]) if x.rank else ()
    text = f"$0, {show_dim(count)}, {at}, {largest}, {sorted}"
    results = [(shape, x.dtype), (shape, DataType.Int)]
    best, places = low.opaques("aten.topk.default", text, (x.value,), results, (0, 1))
    return [low.node(best, x.dtype), low.node(places, DataType.Int)]


def argsort(
    low: Lowering, arg: Given, dim: Given = -1, descending: bool = False, stable: bool = False
) -> Node:
    x = low.tensor(arg)
    at = low.axis(dim, x.rank)
    text = f"$0, stable={stable}, dim={at}, descending={descending}"
    results = [(x.shape, DataType.Int)]
    (places,) = low.opaques("aten.sort.stable", text, (x.value,), results, (1,))
    return low.node(places, DataType.Int)


def _indices(low: Lowering, index: Given) -> Node:
    found = low.tensor(index, "the index")
    if not found.dtype.is_int:
        raise low.fail(f"the index is {found.dtype.value}, where integers are needed")
    return found


def _along(low: Lowering, x: Node, index: Node, dim: Given) -> int:
    if x.rank != index.rank or not x.rank:
        raise low.fail(f"an index of rank {index.rank} for a tensor of rank {x.rank}")
    return low.axis(dim, x.rank)


def _plain(x: Node) -> bool:
    """Whether a kernel can pick from it."""
    return x.dtype.ir is not DType.OTHER and 0 not in x.shape


def _wide(low: Lowering, index: Node) -> Value:
    return low.build.convert(index.value, DType.I64)


def _take(low: Lowering, x: Node, value: Value, index: Value, at: int) -> Node:
    dims = tuple(-1 if d == at else d for d in range(x.rank))
    return low.node(low.build.emit("take", (value, index), {"dims": dims, "wrap": False}), x.dtype)


def _opaque(
    low: Lowering,
    target: str,
    text: str,
    operands: tuple[Value, ...],
    shape: tuple[Dim, ...],
    dtype: DataType,
) -> Node:
    return low.node(low.opaque(target, text, operands, shape, dtype), dtype)


INDEX: dict[str, Rule] = {
    "index_select": index_select,
    "select": select,
    "gather": gather,
    "take_along_axis": take_along_axis,
    "scatter": scatter,
    "topk": topk,
    "argsort": argsort,
}
