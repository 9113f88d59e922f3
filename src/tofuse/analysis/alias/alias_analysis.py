"""Alias analysis of a graph: who shares memory with whom, and what the outside sees of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from tofuse.analysis.alias.concat_slices import concat_slices
from tofuse.analysis.alias.memory_effects import OFFSET_SENSITIVE, is_view, viewed_operand
from tofuse.analysis.alias.strides import (
    MemRef,
    captured_where_free,
    dense_strides,
    view_memref,
    visible_strides,
)
from tofuse.ir.dims import Dim
from tofuse.ir.graph import Graph, Op, Value


@dataclass(frozen=True, eq=False)
class AliasAnalysis:
    """The answers for one graph; each is computed when first asked for.

    A value's *base* is at the end of its chain of views: of the graph's own, whether or not strides
    express them, and of PyTorch's. Its *owner* is the base, or the eliminated concat that the base
    is written into. Two values may share memory only if they have one owner.
    """

    graph: Graph

    @cached_property
    def memrefs(self) -> Mapping[Value, MemRef]:
        """The memory of every value that is exactly a strided view of another, or of itself.

        A view that merges dimensions which are not contiguous in memory has no entry. A view that
        PyTorch makes is its own root.
        """
        memrefs = {v: MemRef(v, 0, v.layout) for v in self.graph.inputs}
        for op in self.graph.ops:
            if not is_view(op):
                for r in op.results:
                    memrefs[r] = MemRef(r, 0, self._own_strides(r, op))
            elif (source := memrefs.get(op.inputs[0])) is not None:
                memref = view_memref(op, source)
                if memref is not None:
                    if op.result in self.escaping:
                        memref = replace(memref, strides=captured_where_free(op.result, memref))
                    memrefs[op.result] = memref
        return memrefs

    def _own_strides(self, v: Value, producer: Op) -> tuple[Dim, ...]:
        """Return the strides of a value that is no view."""
        if v in self.slices:
            return self.slices[v].strides
        if producer.kind == "opaque":
            return v.layout
        return visible_strides(v) if v in self.escaping else dense_strides(v)

    @cached_property
    def slices(self) -> Mapping[Value, MemRef]:
        """The slice of an eliminated concat that a value is written into."""
        return concat_slices(self.graph)

    def root(self, v: Value) -> Value:
        """Return the value that `v` is a strided view of; return `v` if it is no view."""
        return self.memrefs[v].root if v in self.memrefs else v

    def base(self, v: Value) -> Value:
        """Return the value at the end of the chain of views from `v`."""
        return self.view_chain(v)[-1]

    def owner(self, v: Value) -> Value:
        """Return the value that owns the memory in which `v` lies."""
        base = self.base(v)
        return self.slices[base].root if base in self.slices else base

    def view_chain(self, v: Value) -> tuple[Value, ...]:
        """Return `v`, the value that it is a view of, and so on up to its base."""
        return view_chain(v, self.producers)

    @cached_property
    def returned(self) -> frozenset[Value]:
        """The owners of the outputs."""
        return frozenset(self.owner(v) for v in self.graph.outputs if v is not None)

    @cached_property
    def escaping(self) -> frozenset[Value]:
        """The values that the caller may see: outputs, and the values that they are views of."""
        return frozenset(
            v
            for output in self.graph.outputs
            if output is not None
            for v in self.view_chain(output)
        )

    @cached_property
    def possibly_returned(self) -> frozenset[Value]:
        """The values whose memory the caller gets if every library call returns its operands'."""
        found = {v for v in self.graph.outputs if v is not None}
        for op in reversed(self.graph.ops):
            if (op.kind == "opaque" or is_view(op)) and not found.isdisjoint(op.results):
                found.update(op.inputs)
        return frozenset(found)

    @cached_property
    def read_by_library(self) -> frozenset[Value]:
        """The operands of PyTorch's operators, which see their address, strides and memory."""
        return frozenset(v for op in self.graph.ops if op.kind == "opaque" for v in op.inputs)

    @cached_property
    def fixed_strides(self) -> frozenset[Value]:
        """The values whose strides the caller, through views too, or a PyTorch operator sees."""
        return self.read_by_library | self.escaping

    @cached_property
    def fixed_offsets(self) -> frozenset[Value]:
        """The values whose storage offset a PyTorch operator depends on."""
        found: set[Value] = set()
        for op in reversed(self.graph.ops):
            sensitive = op.kind == "opaque" and op.attr("target") in OFFSET_SENSITIVE
            if sensitive or (viewed_operand(op) is not None and not found.isdisjoint(op.results)):
                found.update(op.inputs)
        return frozenset(found)

    @cached_property
    def producers(self) -> Mapping[Value, Op]:
        """The op that makes each value which is no input."""
        return self.graph.producers()


def view_chain(v: Value, producers: Mapping[Value, Op]) -> tuple[Value, ...]:
    """Return `v`, the value that it is a view of, and so on up to its base.

    For a graph under construction; a finished one has an `AliasAnalysis`.
    """
    chain = [v]
    while (op := producers.get(chain[-1])) is not None:
        operand = viewed_operand(op)
        if operand is None:
            break
        chain.append(operand)
    return tuple(chain)
