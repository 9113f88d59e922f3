"""Emit a scatter: the start of its elements, and the statement that combines values into them."""

from __future__ import annotations

from tofuse.fusion.lower.lowering_state import Lowering
from tofuse.fusion.lower.register_types import emit_convert
from tofuse.ir.affine import AffineExpr
from tofuse.ir.elements import round_scalar
from tofuse.ir.graph import Op, Scalar
from tofuse.ir.kernel import Scatter, Store
from tofuse.ir.types import DType


def store_start(self: Lowering, op: Op) -> None:
    """Emit stores of the start value of a scatter into all elements of its result."""
    memref, start = self.storage[op.result], op.attr("start")
    assert isinstance(start, (bool, int, float))
    index = self.address(memref, self.alignment.value_dims[op.result], ())
    value, dtype = round_scalar(Scalar(start), op.result.dtype), op.result.dtype
    self.body.append(Store(self.buffer(memref.root, "out"), index, value, dtype))


def scatter(self: Lowering, op: Op) -> None:
    """Emit the combination of each value with the element that its index selects."""
    result, index, scattered = op.result, op.inputs[1], op.int("dim")
    memref, dims = self.storage[result], self.alignment.operand_dims(op, 0)
    at = AffineExpr((), memref.offset)
    for d, stride in enumerate(memref.strides):
        if d != scattered:
            at += self.dim_index(dims[d], ()) * stride
    over = self.alignment.leaves(dims[scattered : scattered + 1])
    by = emit_convert(self.compute, self.operand(op, 1, (), None), index.dtype, DType.I64)
    self.body.append(
        Scatter(
            self.buffer(memref.root, "out"),
            at,
            self.in_register(by, DType.I64),
            memref.strides[scattered],
            result.shape[scattered],
            bool(op.attr("wrap")),
            str(op.attr("reduce")),
            tuple(self.axes[a].name for a in over),
            self.in_register(self.operand(op, 0, (), None), result.dtype.opmath),
            result.dtype,
        )
    )
