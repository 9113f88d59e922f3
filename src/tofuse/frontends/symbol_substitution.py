"""Substitute a size for a symbol throughout a graph."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tofuse.ir.dims import Dim, SymDim, substitute_dim
from tofuse.ir.graph import Attr, Op, Operand, Scalar, Value


@dataclass
class SymbolSubstitution:
    """Replaces `symbol` by `replacement`; values without the symbol stay the same objects.

    `values` maps each value to its replacement, so that all ops share it.
    """

    symbol: str
    replacement: Dim
    values: dict[Value, Value] = field(default_factory=dict)

    def value(self, v: Value) -> Value:
        if v not in self.values:
            shape = tuple(map(self.dim, v.shape))
            strides = None if v.strides is None else tuple(map(self.dim, v.strides))
            same = shape == v.shape and strides == v.strides
            type_ = replace(v.type, shape=shape)
            self.values[v] = v if same else replace(v, type=type_, strides=strides)
        return self.values[v]

    def dim(self, dim: Dim) -> Dim:
        return substitute_dim(dim, self.symbol, self.replacement)

    def op(self, op: Op) -> Op:
        operands = tuple(map(self._operand, op.operands))
        attrs = tuple((key, self._attr(a)) for key, a in op.attrs)
        return replace(
            op, operands=operands, results=tuple(map(self.value, op.results)), attrs=attrs
        )

    def _operand(self, x: Operand) -> Operand:
        if isinstance(x, Value):
            return self.value(x)
        if isinstance(x.value, SymDim):
            return Scalar(self.dim(x.value))
        return x

    def _attr(self, a: Attr) -> Attr:
        if isinstance(a, SymDim):
            return self.dim(a)
        return tuple(map(self._attr, a)) if isinstance(a, tuple) else a
