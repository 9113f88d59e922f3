"""A graph under construction: each method appends the ops it needs, and no op that does nothing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tofuse.capture.fx.sizes import Sizes
from tofuse.ir.dims import Dim, product
from tofuse.ir.graph import Attr, Loc, Op, Operand, Scalar, Value, substitute
from tofuse.ir.types import DType, TensorType
from tofuse.ops.result_types import infer
from tofuse.ops.table import Pattern, opdef

PLACED = (Pattern.SOURCE, Pattern.RANDOM)  # a seed may lie elsewhere than its numbers


class Refused(Exception):
    """A rule cannot express this call exactly; PyTorch's own operator runs it."""


@dataclass
class Builder:
    """Appends ops. `loc` is the user's line of the call being converted, `device` where ops that
    compute from no tensor put their results."""

    sizes: Sizes
    ops: list[Op] = field(default_factory=list)
    loc: Loc | None = None
    count: int = 0
    constants: dict[Value, Scalar] = field(default_factory=dict)  # results of `full`
    device: str = "cpu"

    def emit(self, kind: str, operands: tuple[Operand, ...], attrs: dict[str, Attr]) -> Value:
        """Append one op with one result."""
        inferred = infer(kind, operands, attrs)
        if opdef(kind).pattern in PLACED:
            inferred = replace(inferred, device=self.device)
        result = Value(inferred, f"v{self.count}")
        self.count += 1
        self.ops.append(Op(kind, operands, (result,), tuple(attrs.items()), self.loc))
        return result

    def elementwise(
        self, kind: str, *operands: Operand, shape: tuple[Dim, ...], dtype: DType
    ) -> Value:
        """Bring the operands to one dtype and shape, then apply `kind`."""
        folded = [self.fold(x, dtype) for x in operands]
        if all(isinstance(x, Scalar) for x in folded):
            folded = list(operands)
        return self.emit(kind, tuple(self.uniform(x, shape, dtype) for x in folded), {})

    def fold(self, x: Operand, dtype: DType) -> Operand:
        """A tensor filled with one number of this dtype as that number."""
        if isinstance(x, Value) and x.dtype == dtype:
            return self.constants.get(x, x)
        return x

    def uniform(self, x: Operand, shape: tuple[Dim, ...], dtype: DType) -> Operand:
        """An operand in this dtype and shape; scalars stay scalars."""
        if isinstance(x, Scalar):
            return scalar(x.value, dtype)
        return self.expand(self.convert(x, dtype), shape)

    def where(self, test: Value, yes: Operand, no: Operand, out: TensorType) -> Value:
        yes, no = self.fold(yes, out.dtype), self.fold(no, out.dtype)
        operands = (
            self.expand(self.convert(test, DType.BOOL), out.shape),
            self.uniform(yes, out.shape, out.dtype),
            self.uniform(no, out.shape, out.dtype),
        )
        constant = isinstance(yes, Scalar) and isinstance(no, Scalar)
        return self.emit("where", operands, {"dtype": out.dtype} if constant else {})

    def convert(self, x: Value, dtype: DType) -> Value:
        return x if x.dtype == dtype else self.emit("convert", (x,), {"dtype": dtype})

    def copy(self, x: Value) -> Value:
        """A tensor of its own, equal to `x`."""
        return self.emit("convert", (x,), {"dtype": x.dtype})

    def reshape(self, x: Value, shape: tuple[Dim, ...]) -> Value:
        if x.shape == shape:
            return x
        if product(x.shape) != product(shape):
            raise Refused("sizes that are equal only by a guard")
        return self.emit("reshape", (x,), {"shape": shape})

    def expand(self, x: Value, shape: tuple[Dim, ...]) -> Value:
        """Broadcast as torch does: align on the right, stretch extents of 1."""
        if x.shape == shape:
            return x
        offset = len(shape) - len(x.shape)
        if offset < 0:
            raise Refused("a broadcast to fewer dimensions")
        kept = tuple(k for k, e in enumerate(x.shape) if e == shape[k + offset])
        if any(e != 1 for k, e in enumerate(x.shape) if k not in kept):
            raise Refused("extents that are equal only by a guard")
        narrow = self.reshape(x, tuple(x.shape[k] for k in kept))
        return self.broadcast(narrow, shape, tuple(k + offset for k in kept))

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
        rank = len(x.shape)
        attrs: dict[str, Attr] = {
            "start": tuple(start if k == dim else 0 for k in range(rank)),
            "step": tuple(step if k == dim else 1 for k in range(rank)),
            "shape": (*x.shape[:dim], extent, *x.shape[dim + 1 :]),
            "dtype": x.dtype,
        }
        return self.emit("slice", (x,), attrs)

    def cat(self, parts: list[Value], dim: int) -> Value:
        return parts[0] if len(parts) == 1 else self.emit("cat", tuple(parts), {"dim": dim})

    def pad(self, x: Value, low: tuple[Dim, ...], high: tuple[Dim, ...], fill: Scalar) -> Value:
        if not any(low) and not any(high):
            return x
        return self.emit("pad", (x, fill), {"low": low, "high": high})

    def full(self, shape: tuple[Dim, ...], value: Scalar, dtype: DType) -> Value:
        constant = scalar(value.value, dtype)
        filled = self.emit("full", (), {"value": constant.value, "shape": shape, "dtype": dtype})
        self.constants[filled] = constant
        return filled

    def reduce(self, kind: str, x: Value, dims: tuple[int, ...], dtype: DType) -> Value:
        """Reduce the sorted `dims` away; over no dimension it is a conversion."""
        if not dims:
            return self.convert(x, dtype)
        return self.emit(kind, (x,), {"dims": dims, "dtype": dtype})

    def rename(self, mark: int, finals: dict[Value, Value]) -> None:
        """Replace results of the ops from `mark` on, e.g. to give them strides."""
        for old, new in finals.items():
            if old in self.constants:
                self.constants[new] = self.constants[old]
        for k in range(mark, len(self.ops)):
            op = self.ops[k]
            results = tuple(finals.get(r, r) for r in op.results)
            self.ops[k] = replace(op, operands=substitute(op.operands, finals), results=results)


def scalar(value: bool | int | float | Dim, dtype: DType) -> Scalar:
    """A constant of the kind that `dtype` holds; a size stays a size."""
    if isinstance(value, (bool, int, float)):
        if dtype == DType.BOOL:
            return Scalar(bool(value))
        if dtype.is_float:
            return Scalar(float(value))
        if isinstance(value, float) and (value != value or abs(value) == float("inf")):
            raise Refused("an integer tensor filled with a value that is no integer")
        return Scalar(int(value))
    return Scalar(value)
