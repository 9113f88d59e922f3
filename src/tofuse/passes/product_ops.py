"""PyTorch's operators that are matrix products, and the ops that replace one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tofuse.analysis.reachability import reachable
from tofuse.ir.dims import Dim
from tofuse.ir.graph import Op, Value
from tofuse.passes.rewrite import OpBuilder, Rewriter

PRODUCT_OPS = frozenset(
    f"aten.{name}.default" for name in ("mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addmv")
)


class ProductBuilder(OpBuilder):
    """Collect the ops that replace one product."""

    def __init__(self, op: Op, rewriter: Rewriter) -> None:
        super().__init__(op, rewriter)
        self.dtype = op.result.dtype.opmath

    def widen(self, x: Value) -> Value:
        """Return the value in the accumulation type."""
        return x if x.dtype is self.dtype else self.add("convert", x, dtype=self.dtype)

    def finish(self, total: Value, addend: list[Value], result: Value) -> None:
        """Add the addend, if there is one, and round the sum once."""
        if addend:
            bias = self.broadcast_to(self.widen(addend[0]), result.shape)
            total = self.add("add", total, bias)
        if total.dtype is not result.dtype:
            self.add("convert", total, dtype=result.dtype)

    def broadcast_to(self, x: Value, shape: tuple[Dim, ...]) -> Value:
        """Broadcast to `shape` by PyTorch's rules: dimensions are aligned from the right."""
        if x.shape == shape:
            return x
        first = len(shape) - len(x.shape)
        dims = tuple(first + k for k, e in enumerate(x.shape) if e == shape[first + k] != 1)
        squeezed = self.add("reshape", x, shape=tuple(shape[d] for d in dims))
        return self.add("broadcast", squeezed, shape=shape, dims=dims)


def is_float_product(op: Op, operands: tuple[Value, ...]) -> bool:
    """Whether a product is of floats of one dtype."""
    dtypes = {v.dtype for v in operands}
    return len(op.results) == 1 and op.result.dtype.is_float and dtypes == {op.result.dtype}


def finished_results(users: Mapping[Value, Sequence[Op]], total: Value) -> list[Value]:
    """Return the sum of products, and what additions and conversions make of it."""

    def read_by(v: Value) -> list[Value]:
        return [op.result for op in users.get(v, ()) if op.kind in ("add", "convert")]

    return list(reachable([total], read_by))


def factors_of(product: Op) -> tuple[Value, Value]:
    """Return both factors of a product of matrices; a summand precedes them."""
    *_, left, weight = product.argument_tensors or ()
    return left, weight


def weight_of(product: Op) -> Value:
    """Return the second factor of a product of matrices."""
    return factors_of(product)[1]
