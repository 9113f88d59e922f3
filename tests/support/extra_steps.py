"""Further steps of random graphs: extrema, argmax, any, pad, iota, take, uniform, bernoulli."""

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
