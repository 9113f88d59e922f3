"""Further steps of random graphs: extrema, any, pad, iota, take, scatters, random numbers."""

from hypothesis import strategies as st

from tests.support.graphs import GraphBuilder, Step
from tofuse.ir.graph import Attr, Scalar, Value
from tofuse.ir.types import DType


def _extremum(g: GraphBuilder, x: Value) -> None:
    kind = g.draw(st.sampled_from(("maximum", "minimum")))
    if x.dtype is not DType.BOOL:
        g.emit(kind, x, g.pick_like(x))


def _other_reductions(g: GraphBuilder, x: Value) -> None:
    if not x.shape:
        return
    dims = tuple(sorted(g.draw(st.sets(st.integers(0, len(x.shape) - 1), min_size=1))))
    kind = g.draw(st.sampled_from(("argmax", "argmin", "any", "all")))
    if kind.startswith("arg") and x.dtype is not DType.BOOL:
        g.emit(kind, x, dims=dims, dtype=DType.I64)
    elif not kind.startswith("arg"):
        g.emit(kind, x, dims=dims, dtype=DType.BOOL)


def _pad(g: GraphBuilder, x: Value) -> None:
    if x.shape and x.dtype is not DType.BOOL:
        low = tuple(g.draw(st.integers(0, 2)) for _ in x.shape)
        high = tuple(g.draw(st.integers(0, 1)) for _ in x.shape)
        fill = Scalar(g.constant(x.dtype))
        g.emit("pad", x, fill, low=low, high=high)


def _iota(g: GraphBuilder, x: Value) -> None:
    attrs: dict[str, Attr] = {"start": g.draw(st.integers(-2, 2))}
    attrs["step"] = g.draw(st.sampled_from((1, 2, -1)))
    dtype = g.draw(st.sampled_from((DType.I64, DType.F32, DType.I32)))
    g.emit("iota", **attrs, shape=x.shape[-1:] or (3,), dtype=dtype)


def _gather_step(g: GraphBuilder, x: Value) -> None:
    """Index one dimension with integers that are reduced to its range."""
    at = g.draw(st.integers(0, max(0, len(x.shape) - 1)))
    whole = [v for v in g.values if v.dtype in (DType.I32, DType.I64) and v.shape]
    if not whole or not x.shape or not isinstance(x.shape[at], int) or x.dtype is DType.BOOL:
        return
    index = g.draw(st.sampled_from(whole))
    extent = x.shape[at]
    assert isinstance(extent, int)
    index = g.emit("remainder", index, Scalar(extent)) if extent > 1 else index
    if extent == 1:
        return
    # the operand's other dimensions come after the index's
    shape = (*index.shape, *x.shape[:at], *x.shape[at + 1 :])
    rank = len(index.shape)
    if len(shape) > 4:
        return
    if len(shape) > rank:
        index = g.emit("broadcast", index, shape=shape, dims=tuple(range(rank)))
    others = iter(range(rank, len(shape)))
    dims = tuple(-1 if k == at else next(others) for k in range(len(x.shape)))
    g.emit("take", x, index, dims=dims, wrap=g.draw(st.booleans()))


def _scatter_step(g: GraphBuilder, x: Value) -> None:
    """Combine elements along one dimension, selected by integers or by their position."""
    if not x.shape:
        return
    at, extent = g.draw(st.integers(0, len(x.shape) - 1)), g.draw(st.integers(2, 4))
    alike = [v for v in g.values if v.dtype in (DType.I32, DType.I64) and v.shape == x.shape]
    if alike:
        index = g.draw(st.sampled_from(alike))
    else:
        step = g.draw(st.sampled_from((1, 3)))
        numbers = g.emit("iota", start=-2, step=step, shape=x.shape[at : at + 1], dtype=DType.I64)
        index = numbers
        if len(x.shape) > 1:
            index = g.emit("broadcast", numbers, shape=x.shape, dims=(at,))
    index = g.emit("remainder", index, Scalar(extent))
    kinds = ("any",) if x.dtype is DType.BOOL else ("sum", "prod", "amax", "amin")
    g.emit(
        "scatter_reduce",
        x,
        index,
        dim=at,
        reduce=g.draw(st.sampled_from(kinds)),
        start=g.constant(x.dtype),
        shape=(*x.shape[:at], extent, *x.shape[at + 1 :]),
        wrap=g.draw(st.booleans()),
    )


def _uniform(g: GraphBuilder, x: Value) -> None:
    """Random numbers with a seed from an iota, instead of an input."""
    seed = g.emit("iota", start=3, step=4, shape=(2,), dtype=DType.I64)
    g.emit("uniform", seed, stream=1, shape=x.shape, dtype=DType.F32)
    if g.draw(st.booleans()):
        kept = g.emit("bernoulli", seed, stream=2, below=50000, shape=x.shape, dtype=DType.BOOL)
        g.emit("convert", kept, dtype=DType.F32)


EXTRA_STEPS: tuple[Step, ...] = (
    _extremum,
    _other_reductions,
    _other_reductions,
    _pad,
    _iota,
    _gather_step,
    _gather_step,
    _uniform,
)
HOST_STEPS: tuple[Step, ...] = (*EXTRA_STEPS, _scatter_step, _scatter_step)  # no kernel on a GPU
