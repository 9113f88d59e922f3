"""Match library calls that are matrix products which generated code can compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Union

from tofuse.analysis.alias import MemRef
from tofuse.ir.call_arguments import CallArgument, OperandRef
from tofuse.ir.dims import Dim, product
from tofuse.ir.graph import Op, Value
from tofuse.ir.region import Region
from tofuse.ir.types import DType

Storage = Mapping[Value, MemRef]
Matcher = Callable[[Op, Storage], Union["Gemm", None]]


@dataclass(frozen=True)
class Matrix:
    """A batch of matrices in the memory of `root`; offset and strides are in elements."""

    root: Value
    offset: Dim
    batch_stride: Dim
    row_stride: Dim
    column_stride: Dim

    def transposed(self) -> Matrix:
        return replace(self, row_stride=self.column_stride, column_stride=self.row_stride)


@dataclass(frozen=True)
class Gemm:
    """c = a b for each of a batch, [m, k] by [k, n], plus a broadcast bias, if any.

    With `reduce_batch`, c is the sum of so many products, whose operands are a batch stride
    apart (a batch-reduce GEMM).
    """

    batch: Dim
    m: Dim
    n: Dim
    k: Dim
    a: Matrix
    b: Matrix
    c: Matrix
    bias: Matrix | None = None
    reduce_batch: Dim = 1

    def transposed(self) -> Gemm:
        """Return the same product as c' = b' a'."""
        bias = None if self.bias is None else self.bias.transposed()
        a, b, c = self.b.transposed(), self.a.transposed(), self.c.transposed()
        return Gemm(self.batch, self.n, self.m, self.k, a, b, c, bias, self.reduce_batch)

    def merged(self) -> Gemm:
        """Merge the batch into rows, and `reduce_batch` into k, where strides allow it."""
        p = self
        rows = [x for x in (p.a, p.c, p.bias) if x is not None]
        if (
            p.batch != 1
            and p.b.batch_stride == 0
            and all(x.batch_stride == x.row_stride * p.m for x in rows)
        ):
            p = replace(p, m=p.batch * p.m, batch=1)
        a_continues = p.a.batch_stride == p.a.column_stride * p.k
        b_continues = p.b.batch_stride == p.b.row_stride * p.k
        if p.reduce_batch != 1 and a_continues and b_continues:
            p = replace(p, k=p.reduce_batch * p.k, reduce_batch=1)
        return p


NOT_A_GEMM = "it is not a matrix product"


def match_gemm(region: Region, storage: Storage) -> Gemm | str:
    """Return the matrix product that a library region computes, or why PyTorch computes it."""
    op = region.ops[0]
    target = str(op.attr("target"))
    matcher = _MATCHERS.get(target)
    if matcher is None:
        return NOT_A_GEMM
    if any(v.dtype is not DType.F32 or v.type.device != "cpu" for v in (*op.inputs, *op.results)):
        return "generated matrix products take float32 on the CPU only"
    gemm = matcher(op, storage)
    if gemm is None:
        return "the call does more than a matrix product"
    gemm = gemm if _is_unit(gemm.c.column_stride, gemm.n) else gemm.transposed()
    return _rejection(gemm) or gemm.merged()


def _product(op: Op, storage: Storage) -> Gemm | None:
    """Match mm, bmm, addmm and baddbmm; the bias comes first."""
    if op.argument_tensors is None:
        return None
    *bias, x, y = op.argument_tensors
    a, b, c = (_matrix(v, storage) for v in (x, y, op.result))
    batch = op.result.shape[0] if len(op.result.shape) == 3 else 1
    (m, k), n = x.shape[-2:], y.shape[-1]
    added = _broadcast_bias(bias[0], op.result, storage) if bias else None
    return Gemm(batch, m, n, k, a, b, c, added)


def _convolution(op: Op, storage: Storage) -> Gemm | None:
    """Match a pointwise convolution: the channels of each position by the weight."""
    match op.arguments.positional:
        case OperandRef(0), OperandRef(1), OperandRef(2) | None as added, *geometry:
            pass
        case _:
            return None
    if not _is_pointwise(op.inputs[1], geometry):
        return None
    image, weight = _image_matrix(op.inputs[0], storage), _weight_matrix(op.inputs[1], storage)
    result = _image_matrix(op.result, storage)
    if image is None or result is None:
        return None
    bias = None
    if added is not None:
        memref = storage[op.inputs[2]]
        bias = Matrix(memref.root, memref.offset, 0, memref.strides[0], 0)
    (count, out, *sizes), k = op.result.shape, op.inputs[1].shape[1]
    return Gemm(count, out, product(sizes), k, weight, image, result, bias)


def _convolution_backward(op: Op, storage: Storage) -> Gemm | None:
    """Match the gradient of a pointwise convolution's image, or of its weight."""
    match op.arguments.positional:
        case (
            OperandRef(0), OperandRef(1), OperandRef(2), _, *geometry,
            (bool(of_image), bool(of_weight), False),
        ) if of_image != of_weight:  # fmt: skip
            grad, image, weight = op.inputs
        case _:
            return None
    if not _is_pointwise(weight, geometry):
        return None
    grad_matrix, image_matrix = _image_matrix(grad, storage), _image_matrix(image, storage)
    (count, out, *sizes), channels = grad.shape, image.shape[1]
    if grad_matrix is None or image_matrix is None:
        return None
    positions = product(sizes)
    if of_image:
        image_grad = _image_matrix(op.results[0], storage)
        transposed_weight = _weight_matrix(weight, storage).transposed()
        if image_grad is None:
            return None
        return Gemm(count, channels, positions, out, transposed_weight, grad_matrix, image_grad)
    c, by_position = _weight_matrix(op.results[0], storage), image_matrix.transposed()
    return Gemm(1, out, channels, positions, grad_matrix, by_position, c, reduce_batch=count)


def _matrix(v: Value, storage: Storage) -> Matrix:
    memref = storage[v]
    batch, row, column = (0, *memref.strides)[-3:]
    return Matrix(memref.root, memref.offset, batch, row, column)


def _broadcast_bias(bias: Value, result: Value, storage: Storage) -> Matrix:
    """Return the bias as a matrix of the shape of the result, by strides of 0."""
    memref, missing = storage[bias], 3 - len(bias.shape)
    shape = (1,) * (3 - len(result.shape)) + result.shape
    strides = [0] * missing + [
        0 if d == 1 and extent != 1 else s
        for d, s, extent in zip(bias.shape, memref.strides, shape[missing:], strict=True)
    ]
    return Matrix(memref.root, memref.offset, *strides)


def _is_pointwise(weight: Value, geometry: Sequence[CallArgument]) -> bool:
    """Whether a convolution has one point; any dilation and output padding are the same then."""
    match geometry:
        case [tuple(stride), tuple(padding), _, False, _, 1]:
            steps = {*stride} == {1} and {*padding} == {0}
            return steps and all(d == 1 for d in weight.shape[2:])
    return False


def _weight_matrix(weight: Value, storage: Storage) -> Matrix:
    """Return a pointwise convolution's weight as output channels by input channels."""
    memref = storage[weight]
    return Matrix(memref.root, memref.offset, 0, memref.strides[0], memref.strides[1])


def _image_matrix(image: Value, storage: Storage) -> Matrix | None:
    """Return each image as channels by positions; None if positions have no common stride."""
    memref = storage[image]
    batch, row, *strides = memref.strides
    column: Dim | None = None
    inner_positions: Dim = 1  # of the dimensions inside the current one
    for size, stride in reversed([*zip(image.shape[2:], strides, strict=True)]):
        if size == 1:
            continue
        if column is not None and stride != inner_positions * column:
            return None
        column = stride if column is None else column
        inner_positions = inner_positions * size
    return Matrix(memref.root, memref.offset, batch, row, 1 if column is None else column)


def _rejection(p: Gemm) -> str | None:
    if not _is_unit(p.c.column_stride, p.n):
        return "neither rows nor columns of the result are contiguous"
    if p.bias and not (p.bias.column_stride == 0 or _is_unit(p.bias.column_stride, p.n)):
        return "the rows of the bias are not contiguous"
    for x, rows, columns in ((p.a, p.m, p.k), (p.b, p.k, p.n)):
        if not _is_unit(x.column_stride, columns) and not _is_unit(x.row_stride, rows):
            return "neither rows nor columns of an operand are contiguous"
    return None


def _is_unit(stride: Dim, extent: Dim) -> bool:
    return stride == 1 or extent == 1


_MATCHERS: dict[str, Matcher] = {
    "aten.mm.default": _product,
    "aten.bmm.default": _product,
    "aten.addmm.default": _product,
    "aten.baddbmm.default": _product,
    "aten.convolution.default": _convolution,
    "aten.convolution_backward.default": _convolution_backward,
}
