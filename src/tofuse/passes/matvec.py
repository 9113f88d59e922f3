"""Turns matrix products that are no matrix products at heart into products and sums that fuse."""

from __future__ import annotations

import re
from dataclasses import replace

from tofuse.ir.dims import Dim, hint
from tofuse.ir.graph import Attr, Graph, Op, Value
from tofuse.ir.types import DType
from tofuse.passes.rewrite import Rewrite, Rule, Sweep, rewrite


def matvec(graph: Graph) -> Graph:
    """Write products with one column as sums, and those over one element as plain products."""
    return rewrite(graph, RULES)


def thin_product(op: Op, sweep: Sweep) -> Rewrite | None:
    """x[M,K] @ w[K,1] = sum over k of x * w; x[1,K] @ w[K,N] too where it is long; and over one
    element x[M,1] @ w[1,N] = x * w. Also batched, also with an addend, also with a vector."""
    operands = _arguments(op)
    form = FORMS.get(str(op.attr("target")))
    if form is None or operands is None or not _floats(op, operands):
        return None
    *addend, x, w = operands
    if len(addend) != (1 if form == "added" else 0) or not _fit(x, w, op.result):
        return None
    work = _Work(op, sweep)
    if len(w.shape) == 1:
        total = work.reduce(work.widen(x), work.widen(w))
    elif x.shape[-1] == 1:
        total = work.outer(work.widen(x), work.widen(w))
    elif w.shape[-1] == 1:
        column = work.widen(work.add("reshape", w, shape=w.shape[:-1]))
        total = work.reduce(work.widen(x), column)
    elif x.shape[-2] == 1 and _is_long(w):
        row = work.widen(work.add("reshape", x, shape=(*x.shape[:-2], x.shape[-1])))
        total = work.reduce_rows(row, work.widen(w))
    else:
        return None
    if total.shape != op.result.shape:
        total = work.add("reshape", total, shape=op.result.shape)
    if addend:
        spread = work.spread(work.widen(addend[0]), op.result.shape)
        total = work.add("add", total, spread)
    if total.dtype is not op.result.dtype:
        work.add("convert", total, dtype=op.result.dtype)
    return work.finished()


class _Work:
    """The ops that take the place of one product."""

    def __init__(self, op: Op, sweep: Sweep) -> None:
        self.op, self.sweep = op, sweep
        self.ops: list[Op] = []
        self.dtype = DType.F32 if op.result.dtype.is_narrow else op.result.dtype

    def add(self, kind: str, *operands: Value, **attrs: Attr) -> Value:
        self.ops.append(self.sweep.make(kind, operands, like=self.op, **attrs))
        return self.ops[-1].result

    def widen(self, x: Value) -> Value:
        """The value in the type that products are summed in."""
        return x if x.dtype is self.dtype else self.add("convert", x, dtype=self.dtype)

    def reduce(self, x: Value, w: Value) -> Value:
        """sum over k of x[..., M, K] * w[..., K]"""
        if x.shape != w.shape:
            rank = len(x.shape)
            dims = (*range(len(w.shape) - 1), rank - 1)
            w = self.add("broadcast", w, shape=x.shape, dims=dims)
        product = self.add("mul", x, w)
        return self.add("sum", product, dims=(len(x.shape) - 1,), dtype=self.dtype)

    def reduce_rows(self, x: Value, w: Value) -> Value:
        """sum over k of x[..., K] * w[..., K, N]"""
        rank = len(w.shape)
        x = self.add("broadcast", x, shape=w.shape, dims=tuple(range(rank - 1)))
        product = self.add("mul", x, w)
        return self.add("sum", product, dims=(rank - 2,), dtype=self.dtype)

    def outer(self, x: Value, w: Value) -> Value:
        """x[..., M, 1] * w[..., 1, N]"""
        shape = (*x.shape[:-1], w.shape[-1])
        rank = len(shape)
        column = self.add("reshape", x, shape=x.shape[:-1])
        row = self.add("reshape", w, shape=(*w.shape[:-2], w.shape[-1]))
        left = self.add("broadcast", column, shape=shape, dims=tuple(range(rank - 1)))
        batch = tuple(range(rank - 2))
        right = self.add("broadcast", row, shape=shape, dims=(*batch, rank - 1))
        return self.add("mul", left, right)

    def spread(self, x: Value, shape: tuple[Dim, ...]) -> Value:
        """Broadcast as PyTorch does, from the right."""
        if x.shape == shape:
            return x
        first = len(shape) - len(x.shape)
        dims = tuple(first + k for k, e in enumerate(x.shape) if e == shape[first + k] != 1)
        kept = self.add("reshape", x, shape=tuple(shape[d] for d in dims))
        return self.add("broadcast", kept, shape=shape, dims=dims)

    def finished(self) -> tuple[Op, ...]:
        """The ops; the last of them defines the result of the product."""
        return (*self.ops[:-1], replace(self.ops[-1], results=self.op.results))


def _arguments(op: Op) -> tuple[Value, ...] | None:
    """The operands in the order of the call, if it passes nothing else."""
    found: list[Value] = []
    for text in str(op.attr("args")).split(","):
        place = _OPERAND.fullmatch(text.strip())
        if place is None:
            return None
        found.append(op.inputs[int(place[1])])
    return tuple(found)


def _fit(x: Value, w: Value, result: Value) -> bool:
    """Whether sizes are known to be equal: of symbols only a guard may know."""
    columns = () if len(w.shape) == 1 else w.shape[-1:]
    inner = w.shape[0] if len(w.shape) == 1 else w.shape[-2]
    batched = len(w.shape) < 3 or x.shape[:-2] == w.shape[:-2]
    return batched and x.shape[-1] == inner and (*x.shape[:-1], *columns) == result.shape


def _floats(op: Op, operands: tuple[Value, ...]) -> bool:
    dtypes = {v.dtype for v in operands}
    return len(op.results) == 1 and op.result.dtype.is_float and dtypes == {op.result.dtype}


def _is_long(w: Value) -> bool:
    """Whether the sum over rows is a weight's gradient rather than a layer applied to one row."""
    k, n = w.shape[-2:]
    return not isinstance(k, int) or k >= LONG * hint(n)


# Where rows outnumber columns this much, they come from a batch, and what makes them fuses with the
# sum; in layers, features come and go in like numbers, and the library's product is as good.
LONG = 8

_OPERAND = re.compile(r"\$(\d+)")

FORMS = {
    "aten.mm.default": "plain",
    "aten.bmm.default": "plain",
    "aten.mv.default": "plain",
    "aten.dot.default": "plain",
    "aten.addmm.default": "added",
    "aten.baddbmm.default": "added",
    "aten.addmv.default": "added",
}

RULES: dict[str, tuple[Rule, ...]] = {"opaque": (thin_product,)}
