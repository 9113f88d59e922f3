"""The builder of a Graph: each method appends the ops it needs, and no op that does nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import reduce

from tofuse.capture.fx.sizes import SymbolicSizes
from tofuse.ir.dims import Dim, product
from tofuse.ir.elements import round_scalar
from tofuse.ir.graph import Attr, Loc, Op, Operand, Scalar, Value, substitute_operands
from tofuse.ir.types import DType, TensorType
from tofuse.ops.result_types import infer_type, slice_attrs
from tofuse.ops.table import OPS, Pattern

DEVICE_FROM_CALL = (Pattern.SOURCE, Pattern.RANDOM)  # a seed may be on another device


class Unsupported(Exception):
    """A rule cannot express this call exactly, so it falls back to PyTorch."""


@dataclass
class Builder:
    """Appends ops. `loc` is the source line of the call that is converted; `device` is the device
    of results that are computed from no tensor."""

    sizes: SymbolicSizes
    ops: list[Op] = field(default_factory=list)
    loc: Loc | None = None
    value_count: int = 0
    constants: dict[Value, Scalar] = field(default_factory=dict)  # results of `full`
    device: str = "cpu"

    def emit(self, kind: str, operands: tuple[Operand, ...], attrs: dict[str, Attr]) -> Value:
        """Append one op with one result."""
        inferred = infer_type(kind, operands, attrs)
        if OPS[kind].pattern in DEVICE_FROM_CALL:
            inferred = replace(inferred, device=self.device)
        result = Value(inferred, f"v{self.value_count}")
        self.value_count += 1
        self.ops.append(Op(kind, operands, (result,), tuple(attrs.items()), self.loc))
        return result

    def fold(self, kind: str, operands: Iterable[Value]) -> Value:
        """Combine the operands from the first to the last."""
        return reduce(lambda a, b: self.emit(kind, (a, b), {}), operands)

    def elementwise(
        self, kind: str, *operands: Operand, shape: tuple[Dim, ...], dtype: DType
    ) -> Value:
        """Bring the operands to one dtype and shape, then apply `kind`."""
        folded = [self.fold_full(x, dtype) for x in operands]
        if all(isinstance(x, Scalar) for x in folded):
            folded = list(operands)
        return self.emit(kind, tuple(self.convert_and_expand(x, shape, dtype) for x in folded), {})

    def fold_full(self, x: Operand, dtype: DType) -> Operand:
        """Return the number that fills a `full` tensor of this dtype; else the operand."""
        if isinstance(x, Value) and x.dtype == dtype:
            return self.constants.get(x, x)
        return x

    def convert_and_expand(self, x: Operand, shape: tuple[Dim, ...], dtype: DType) -> Operand:
        """Convert and broadcast an operand to this dtype and shape; scalars stay scalars."""
        if isinstance(x, Scalar):
            return typed_scalar(x.value, dtype)
        return self.expand(self.convert(x, dtype), shape)

    def where(self, test: Value, yes: Operand, no: Operand, out: TensorType) -> Value:
        yes, no = self.fold_full(yes, out.dtype), self.fold_full(no, out.dtype)
        operands = (
            self.expand(self.convert(test, DType.BOOL), out.shape),
            self.convert_and_expand(yes, out.shape, out.dtype),
            self.convert_and_expand(no, out.shape, out.dtype),
        )
        constant = isinstance(yes, Scalar) and isinstance(no, Scalar)
        return self.emit("where", operands, {"dtype": out.dtype} if constant else {})

    def convert(self, x: Value, dtype: DType) -> Value:
        return x if x.dtype == dtype else self.emit("convert", (x,), {"dtype": dtype})

    def copy(self, x: Value) -> Value:
        """Copy a tensor into new memory."""
        return self.emit("convert", (x,), {"dtype": x.dtype})

    def reshape(self, x: Value, shape: tuple[Dim, ...]) -> Value:
        if x.shape == shape:
            return x
        if product(x.shape) != product(shape):
            raise Unsupported("sizes that are equal only by a guard")
        return self.emit("reshape", (x,), {"shape": shape})

    def expand(self, x: Value, shape: tuple[Dim, ...]) -> Value:
        """Broadcast as torch does: align on the right, stretch extents of 1."""
        if x.shape == shape:
            return x
        offset = len(shape) - len(x.shape)
        if offset < 0:
            raise Unsupported("a broadcast to fewer dimensions")
        kept = tuple(k for k, e in enumerate(x.shape) if e == shape[k + offset])
        if any(e != 1 for k, e in enumerate(x.shape) if k not in kept):
            raise Unsupported("extents that are equal only by a guard")
        squeezed = self.reshape(x, tuple(x.shape[k] for k in kept))
        return self.broadcast(squeezed, shape, tuple(k + offset for k in kept))

    def broadcast(self, x: Value, shape: tuple[Dim, ...], dims: tuple[int, ...]) -> Value:
        if x.shape == shape:
            return x
        return self.emit("broadcast", (x,), {"shape": shape, "dims": dims})

    def permute(self, x: Value, dims: tuple[int, ...]) -> Value:
        if dims == tuple(range(len(x.shape))):
            return x
        return self.emit("permute", (x,), {"dims": dims})

    def slice(self, x: Value, dim: int, start: Dim, extent: Dim, step: int = 1) -> Value:
        """Elements start, start + step, ... of one dimension."""
        if start == 0 and step == 1 and extent == x.shape[dim]:
            return x
        return self.emit("slice", (x,), slice_attrs(x, dim, start, extent, step))

    def cat(self, parts: list[Value], dim: int) -> Value:
        return parts[0] if len(parts) == 1 else self.emit("cat", tuple(parts), {"dim": dim})

    def pad(self, x: Value, low: tuple[Dim, ...], high: tuple[Dim, ...], fill: Scalar) -> Value:
        if not any(low) and not any(high):
            return x
        return self.emit("pad", (x, fill), {"low": low, "high": high})

    def full(self, shape: tuple[Dim, ...], value: Scalar, dtype: DType) -> Value:
        constant = round_scalar(typed_scalar(value.value, dtype), dtype)
        filled = self.emit("full", (), {"value": constant.value, "shape": shape, "dtype": dtype})
        self.constants[filled] = constant
        return filled

    def iota(self, count: Dim, start: Dim, step: Dim, dtype: DType) -> Value:
        """Return start, start + step, ... with `count` elements."""
        attrs: dict[str, Attr] = {"start": start, "step": step, "shape": (count,), "dtype": dtype}
        return self.emit("iota", (), attrs)

    def reduce(self, kind: str, x: Value, dims: tuple[int, ...], dtype: DType) -> Value:
        """Reduce over the sorted `dims`; without dims, convert, and turn a sum of -0.0 to 0.0."""
        if not dims:
            x = self.convert(x, dtype)
            adds_zero = kind == "sum" and dtype.is_float
            return self.emit("add", (x, Scalar(0.0)), {}) if adds_zero else x
        return self.emit(kind, (x,), {"dims": dims, "dtype": dtype})

    def replace_results(self, start: int, replacements: dict[Value, Value]) -> None:
        """Replace results of the ops from `start` on, for instance to give them strides."""
        for old, new in replacements.items():
            if old in self.constants:
                self.constants[new] = self.constants[old]
        for k in range(start, len(self.ops)):
            op = self.ops[k]
            results = tuple(replacements.get(r, r) for r in op.results)
            self.ops[k] = replace(
                op, operands=substitute_operands(op.operands, replacements), results=results
            )


def typed_scalar(value: bool | int | float | Dim, dtype: DType) -> Scalar:
    """Return a constant with the Python type of `dtype`; a symbolic size stays as it is."""
    if isinstance(value, (bool, int, float)):
        if dtype == DType.BOOL:
            return Scalar(bool(value))
        if dtype.is_float:
            return Scalar(float(value))
        if isinstance(value, float) and (value != value or abs(value) == float("inf")):
            raise Unsupported("an integer tensor filled with nan or inf")
        return Scalar(int(value))
    return Scalar(value)
