"""Which library calls are matrix products that code of ours can do, and how they lie in memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tofuse.ir.dims import Dim, hint
from tofuse.ir.graph import Op, Value
from tofuse.ir.region import Region, Strided
from tofuse.ir.types import DType

LEAST_ROWS, LEAST_COLUMNS = 4, 16  # below, most lanes of the kernel would be idle
LEAST_FLOPS = 1 << 19  # below, PyTorch's call takes no longer


@dataclass(frozen=True)
class Matrix:
    """Rows and columns in the memory of `root`: where they begin, and how far apart (elements)."""

    root: Value
    offset: Dim
    batch: Dim
    row: Dim
    column: Dim

    def transposed(self) -> Matrix:
        return replace(self, row=self.column, column=self.row)


@dataclass(frozen=True)
class Product:
    """c = a b for each of a batch, [m, k] by [k, n], plus a bias spread over c, if any."""

    batch: Dim
    m: Dim
    n: Dim
    k: Dim
    a: Matrix
    b: Matrix
    c: Matrix
    bias: Matrix | None

    @property
    def flops(self) -> Dim:
        return self.batch * self.m * self.n * self.k * 2

    def transposed(self) -> Product:
        """The same product as c' = b' a'."""
        bias = None if self.bias is None else self.bias.transposed()
        a, b, c = self.b.transposed(), self.a.transposed(), self.c.transposed()
        return Product(self.batch, self.n, self.m, self.k, a, b, c, bias)


def product_of(region: Region, storage: Mapping[Value, Strided]) -> Product | str:
    """The matrix product that a library region is; or why a kernel of ours does not take it."""
    op = region.ops[0]
    target = str(op.attr("target"))
    if target not in _OPERATORS:
        return "it is no matrix product"
    operands = _operands(op, _OPERATORS[target])
    if operands is None:
        return "it is scaled, or rounded to another type"
    if any(v.dtype is not DType.F32 or v.type.device != "cpu" for v in (*operands, op.result)):
        return "our products are of float32 on the CPU"
    *bias, x, y = operands
    a, b, c = (_matrix(v, storage) for v in (x, y, op.result))
    batch = op.result.shape[0] if len(op.result.shape) == 3 else 1
    (m, k), n = x.shape[-2:], y.shape[-1]
    given = _spread(bias[0], op.result, storage) if bias else None
    found = Product(batch, m, n, k, a, b, c, given)
    found = found if _is_unit(c.column, n) else found.transposed()
    return _refusal(found) or found


def _operands(op: Op, count: int) -> list[Value] | None:
    """The tensors a call is given, None where it is given anything else."""
    wanted = ", ".join([r"\$(\d+)"] * count)
    found = re.fullmatch(wanted, str(op.attr("args")))
    return None if found is None else [op.inputs[int(k)] for k in found.groups()]


def _matrix(v: Value, storage: Mapping[Value, Strided]) -> Matrix:
    place = storage[v]
    batch, row, column = (0, *place.strides)[-3:]
    return Matrix(place.root, place.offset, batch, row, column)


def _spread(bias: Value, over: Value, storage: Mapping[Value, Strided]) -> Matrix:
    """The bias as a matrix of the shape of the product, by strides of 0."""
    place, missing = storage[bias], 3 - len(bias.shape)
    shape = (1,) * (3 - len(over.shape)) + over.shape
    strides = [0] * missing + [
        0 if d == 1 and extent != 1 else s
        for d, s, extent in zip(bias.shape, place.strides, shape[missing:], strict=True)
    ]
    return Matrix(place.root, place.offset, *strides)


def _refusal(p: Product) -> str | None:
    if not _is_unit(p.c.column, p.n) or (p.bias and not _is_unit(p.bias.column, p.n)):
        return "what it writes or adds has neither rows nor columns in one piece"
    for x, rows, columns in ((p.a, p.m, p.k), (p.b, p.k, p.n)):
        if not _is_unit(x.column, columns) and not _is_unit(x.row, rows):
            return "an operand has neither rows nor columns in one piece"
    narrow = hint(p.m) < LEAST_ROWS or hint(p.n) < LEAST_COLUMNS
    if narrow or hint(p.flops) < LEAST_FLOPS:
        return "it is too small to gain"
    return None


def _is_unit(stride: Dim, extent: Dim) -> bool:
    return stride == 1 or extent == 1


_OPERATORS = {
    "aten.mm.default": 2,
    "aten.bmm.default": 2,
    "aten.addmm.default": 3,
    "aten.baddbmm.default": 3,
}
