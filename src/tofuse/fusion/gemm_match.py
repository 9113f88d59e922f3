"""Which library calls are matrix products that code of ours can do, and how they lie in memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Union

from tofuse.ir.dims import Dim, hint, product
from tofuse.ir.graph import Op, Value
from tofuse.ir.region import Region, Strided
from tofuse.ir.types import DType

Storage = Mapping[Value, Strided]
Reader = Callable[[Op, Storage], Union["Product", None]]

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
    """c = a b for each of a batch, [m, k] by [k, n], plus a bias spread over c, if any.

    With `depths`, c is the sum of so many products, whose operands are a batch stride apart.
    """

    batch: Dim
    m: Dim
    n: Dim
    k: Dim
    a: Matrix
    b: Matrix
    c: Matrix
    bias: Matrix | None = None
    depths: Dim = 1

    @property
    def flops(self) -> Dim:
        return self.batch * self.depths * self.m * self.n * self.k * 2

    def transposed(self) -> Product:
        """The same product as c' = b' a'."""
        bias = None if self.bias is None else self.bias.transposed()
        a, b, c = self.b.transposed(), self.a.transposed(), self.c.transposed()
        return Product(self.batch, self.n, self.m, self.k, a, b, c, bias, self.depths)

    def merged(self) -> Product:
        """A batch whose rows follow one another as one matrix of more rows; depths likewise."""
        p = self
        rows = [x for x in (p.a, p.c, p.bias) if x is not None]
        if p.batch != 1 and p.b.batch == 0 and all(x.batch == x.row * p.m for x in rows):
            p = replace(p, m=p.batch * p.m, batch=1)
        if p.depths != 1 and p.a.batch == p.a.column * p.k and p.b.batch == p.b.row * p.k:
            p = replace(p, k=p.depths * p.k, depths=1)
        return p


NO_PRODUCT = "it is no matrix product"


def product_of(region: Region, storage: Storage) -> Product | str:
    """The matrix product that a library region is; or why a kernel of ours does not take it."""
    op = region.ops[0]
    target = str(op.attr("target"))
    read = _READERS.get(target)
    if read is None:
        return NO_PRODUCT
    if any(v.dtype is not DType.F32 or v.type.device != "cpu" for v in (*op.inputs, *op.results)):
        return "our products are of float32 on the CPU"
    found = read(op, storage)
    if found is None:
        return "it does more than a product"
    found = found if _is_unit(found.c.column, found.n) else found.transposed()
    return _refusal(found) or found.merged()


def _product(count: int) -> Reader:
    """mm, bmm, addmm, baddbmm by the number of their operands."""

    def read(op: Op, storage: Storage) -> Product | None:
        operands = _operands(op, count)
        if operands is None:
            return None
        *bias, x, y = operands
        a, b, c = (_matrix(v, storage) for v in (x, y, op.result))
        batch = op.result.shape[0] if len(op.result.shape) == 3 else 1
        (m, k), n = x.shape[-2:], y.shape[-1]
        given = _spread(bias[0], op.result, storage) if bias else None
        return Product(batch, m, n, k, a, b, c, given)

    return read


def _convolution(op: Op, storage: Storage) -> Product | None:
    """A convolution by one point: each place's channels by the weight."""
    found = re.fullmatch(rf"\$0, \$1, (None|\$2), {_POINTWISE}", str(op.attr("args")))
    if found is None or not _is_point(op.inputs[1]):
        return None
    image, weight = _places(op.inputs[0], storage), _channels(op.inputs[1], storage)
    result = _places(op.result, storage)
    if image is None or result is None:
        return None
    bias = None
    if found[1] != "None":
        place = storage[op.inputs[2]]
        bias = Matrix(place.root, place.offset, 0, place.strides[0], 0)
    (count, out, *sizes), k = op.result.shape, op.inputs[1].shape[1]
    return Product(count, out, product(sizes), k, weight, image, result, bias)


def _convolution_backward(op: Op, storage: Storage) -> Product | None:
    """The gradient of such a convolution's image, or that of its weight."""
    tail = r"\[(True|False), (True|False), False\]"
    found = re.fullmatch(rf"\$0, \$1, \$2, {_SIZES}, {_POINTWISE}, {tail}", str(op.attr("args")))
    if found is None or found[1] == found[2] or not _is_point(op.inputs[2]):
        return None
    grad, image, weight = op.inputs
    given, places = _places(grad, storage), _places(image, storage)
    (count, out, *sizes), channels = grad.shape, image.shape[1]
    if given is None or places is None:
        return None
    if found[1] == "True":
        made = _places(op.results[0], storage)
        turned = _channels(weight, storage).transposed()
        if made is None:
            return None
        return Product(count, channels, product(sizes), out, turned, given, made)
    made = _channels(op.results[0], storage)
    places = places.transposed()
    return Product(1, out, channels, product(sizes), given, places, made, depths=count)


def _operands(op: Op, count: int) -> list[Value] | None:
    """The tensors a call is given, None where it is given anything else."""
    wanted = ", ".join([r"\$(\d+)"] * count)
    found = re.fullmatch(wanted, str(op.attr("args")))
    return None if found is None else [op.inputs[int(k)] for k in found.groups()]


def _matrix(v: Value, storage: Storage) -> Matrix:
    place = storage[v]
    batch, row, column = (0, *place.strides)[-3:]
    return Matrix(place.root, place.offset, batch, row, column)


def _spread(bias: Value, over: Value, storage: Storage) -> Matrix:
    """The bias as a matrix of the shape of the product, by strides of 0."""
    place, missing = storage[bias], 3 - len(bias.shape)
    shape = (1,) * (3 - len(over.shape)) + over.shape
    strides = [0] * missing + [
        0 if d == 1 and extent != 1 else s
        for d, s, extent in zip(bias.shape, place.strides, shape[missing:], strict=True)
    ]
    return Matrix(place.root, place.offset, *strides)


def _is_point(weight: Value) -> bool:
    return all(d == 1 for d in weight.shape[2:])


def _channels(weight: Value, storage: Storage) -> Matrix:
    """A pointwise convolution's weight: output channels by input channels."""
    place = storage[weight]
    return Matrix(place.root, place.offset, 0, place.strides[0], place.strides[1])


def _places(image: Value, storage: Storage) -> Matrix | None:
    """Channels by places, for each image; None where no one stride leads from place to place."""
    place = storage[image]
    batch, row, *strides = place.strides
    column: Dim | None = None
    covered: Dim = 1  # places inside of the dimension at hand
    for size, stride in reversed([*zip(image.shape[2:], strides, strict=True)]):
        if size == 1:
            continue
        if column is not None and stride != covered * column:
            return None
        column = stride if column is None else column
        covered = covered * size
    return Matrix(place.root, place.offset, batch, row, 1 if column is None else column)


def _refusal(p: Product) -> str | None:
    if not _is_unit(p.c.column, p.n):
        return "what it writes has neither rows nor columns in one piece"
    if p.bias and not (p.bias.column == 0 or _is_unit(p.bias.column, p.n)):
        return "what it adds has no rows in one piece"
    for x, rows, columns in ((p.a, p.m, p.k), (p.b, p.k, p.n)):
        if not _is_unit(x.column, columns) and not _is_unit(x.row, rows):
            return "an operand has neither rows nor columns in one piece"
    narrow = hint(p.m) < LEAST_ROWS or hint(p.n) < LEAST_COLUMNS
    if narrow or hint(p.flops) < LEAST_FLOPS:
        return "it is too small to gain"
    return None


def _is_unit(stride: Dim, extent: Dim) -> bool:
    return stride == 1 or extent == 1


_SIZES = r"(?:None|\[\d*\])"  # of a bias
_LIST = r"\[[\d, ]*\]"
# stride, padding, dilation (of one point: any), not transposed, output padding, groups
_POINTWISE = rf"\[1(?:, 1)*\], \[0(?:, 0)*\], {_LIST}, False, {_LIST}, 1"
_READERS: dict[str, Reader] = {
    "aten.mm.default": _product(2),
    "aten.bmm.default": _product(2),
    "aten.addmm.default": _product(3),
    "aten.baddbmm.default": _product(3),
    "aten.convolution.default": _convolution,
    "aten.convolution_backward.default": _convolution_backward,
}
