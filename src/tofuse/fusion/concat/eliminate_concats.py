"""Graph -> Graph: eliminate long concats; producers write into slices of the result.

A kernel's result whose memory is needed only until the concat copies it is written directly into
its slice of the concat. Other operands, such as views, arguments, and results of library calls or
of the program, are copied into the slice by a kernel.
"""

from __future__ import annotations

from dataclasses import replace

from tofuse.analysis.alias import (
    ELIMINATED,
    AliasAnalysis,
    MemRef,
    dense_strides,
    is_communication,
    is_eliminated_concat,
    is_view,
    operand_slice,
    view_memref,
)
from tofuse.cost.target_costs import CostsOf
from tofuse.cost.thresholds import FEW_CONCAT_OPERANDS, MIN_RUN_BYTES
from tofuse.graph_partition import Partition
from tofuse.ir.call_arguments import CallArguments, OperandRef
from tofuse.ir.dims import Dim, equal_strides, size_hint
from tofuse.ir.graph import Graph, Names, Op, Value
from tofuse.ir.rules import Reason, Rule
from tofuse.ir.types import DType
from tofuse.ops.result_types import make_op

CAT = "aten.cat.default"


def eliminate_concats(graph: Graph, costs_of: CostsOf, enabled: bool = True) -> Graph:
    """Eliminate concats of more than six operands where that is possible and pays off.

    Other concats with too many operands for a kernel become library calls.
    """
    long = [op for op in graph.ops if op.kind == "cat" and len(op.inputs) > FEW_CONCAT_OPERANDS]
    if not long:
        return graph
    return _Elimination(graph, costs_of, frozenset(long if enabled else ())).run()


def eliminate_stored_concats(graph: Graph, part: Partition, costs_of: CostsOf) -> Graph:
    """Eliminate concats in kernels that read operands which other kernels store.

    A concat that is itself stored needs one such operand; of any other, all must be such.
    `graph` is the partition's graph, or a rewrite that keeps some of its ops.
    """
    region_of = {op: r for r in part.regions if not r.library for op in r.ops}
    producers = part.graph.producers()

    def is_stored_elsewhere(v: Value, concat: Op) -> bool:
        op = producers.get(part.aliases.base(v))
        return op is not None and op in region_of and region_of[op] is not region_of[concat]

    concats = [op for op in region_of if op.kind == "cat"]
    stored = frozenset(op for op in concats if op.result in region_of[op].outputs)
    stored_operands = {op: [is_stored_elsewhere(v, op) for v in op.inputs] for op in concats}
    found = [op for op in concats if (any if op in stored else all)(stored_operands[op])]
    return _Elimination(graph, costs_of, frozenset(found), stored).run() if found else graph


def library_call_rule(op: Op) -> Reason:
    """Return the rule by which a library call is not fused with its producers."""
    if is_eliminated_concat(op):
        return Rule.WRITTEN_INTO_CONCAT()
    if is_communication(op):
        return Rule.COLLECTIVE()
    is_long_concat = op.attr("target") == CAT and len(op.inputs) > FEW_CONCAT_OPERANDS
    return Rule.LONG_CONCAT() if is_long_concat else Rule.LIBRARY_CALL()


class _Elimination:
    """The elimination of `concats`.

    At least half of the bytes of a concat must be in-place operands; all of them, if the concat
    is not in `stored`. None: all concats are stored.
    """

    def __init__(
        self,
        graph: Graph,
        costs_of: CostsOf,
        concats: frozenset[Op],
        stored: frozenset[Op] | None = None,
    ) -> None:
        self.graph, self.concats, self.stored = graph, concats, stored
        self.costs_of = costs_of
        self.aliases, self.names = AliasAnalysis(graph), Names(graph)
        self.producers, self.users = graph.producers(), graph.users()
        self.in_place = set(self.aliases.slices)  # values in a slice of some concat

    def run(self) -> Graph:
        graph, ops = self.graph, list[Op]()
        for op in graph.ops:
            eliminated = self._eliminate(op) if op in self.concats else None
            ops += eliminated or [_library_concat(op) if self._is_too_long(op) else op]
        return graph if ops == list(graph.ops) else replace(graph, ops=tuple(ops))

    def _eliminate(self, concat: Op) -> list[Op] | None:
        """Return copies of operands that cannot be in place, then the eliminated concat.

        None if the concat is not eliminated.
        """
        costs = self.costs_of(concat.result.type.device)
        if (self.stored is None and not costs.eliminates_concats) or not _is_eliminable(concat):
            return None
        call = _library_concat(concat)
        start: Dim = 0
        in_place: dict[int, Value] = {}
        for k, operand in enumerate(concat.inputs):
            root, strides, _ = operand_slice(operand, call, start, self.producers)
            if root not in self.in_place and self._can_be_in_place(root, strides):
                in_place[k] = root
                self.in_place.add(root)
            start = start + operand.shape[concat.int("dim")]
        sizes = [size_hint(v.type.nbytes) for v in concat.inputs]
        is_stored = self.stored is None or concat in self.stored
        if (2 if is_stored else 1) * sum(sizes[k] for k in in_place) < sum(sizes):
            self.in_place.difference_update(in_place.values())
            return None
        copies = {
            k: self._copy(v, concat) for k, v in enumerate(concat.inputs) if k not in in_place
        }
        operands = tuple(
            copies[k].result if k in copies else v for k, v in enumerate(concat.inputs)
        )
        marked = replace(call, operands=operands, attrs=(*call.attrs, (ELIMINATED, True)))
        return [*copies.values(), marked]

    def _is_too_long(self, op: Op) -> bool:
        """Whether an op is a concat of more operands than a kernel takes."""
        if op.kind != "cat":
            return False
        return len(op.inputs) > self.costs_of(op.result.type.device).max_concat_operands

    def _can_be_in_place(self, root: Value, strides: tuple[Dim, ...]) -> bool:
        """Whether a kernel makes a value that may have these strides in the concat's memory.

        Only kernels may read a value whose strides differ from its usual ones.
        """
        producer = self.producers.get(root)
        if producer is None or producer.kind == "opaque" or is_view(producer):
            return False
        if producer in self.concats or root in self.aliases.possibly_returned:
            return False
        if _has_dense_strides(root, strides):
            return True
        return self._is_read_by_kernels(MemRef(root, 0, strides), root)

    def _is_read_by_kernels(self, memref: MemRef, v: Value) -> bool:
        """Whether no library call reads a value, and every view of it has strides."""
        for op in self.users.get(v, ()):
            if op.kind == "opaque":
                return False
            if is_view(op):
                viewed = view_memref(op, memref)
                if viewed is None or not self._is_read_by_kernels(viewed, op.result):
                    return False
        return True

    def _copy(self, v: Value, concat: Op) -> Op:
        name = self.names.fresh(f"{v.name}_in_place")
        return make_op("convert", (v,), {"dtype": v.dtype}, name=name, like=concat)


def _library_concat(concat: Op) -> Op:
    """Return a call of PyTorch's own operator for a concat."""
    operands = tuple(OperandRef(k) for k in range(len(concat.inputs)))
    dim, result = concat.int("dim"), concat.result
    return concat.redefined(
        "opaque",
        *concat.inputs,
        target=CAT,
        args=CallArguments((operands, dim)),
        shape=result.shape,
        dtype=result.dtype,
        dim=dim,
    )


def _is_eliminable(concat: Op) -> bool:
    """Whether slices of a concat may be written in place."""
    v = concat.result
    if v.dtype is DType.OTHER or size_hint(v.type.numel) <= 0:
        return False
    return _has_dense_strides(v, v.layout) and _has_long_runs(concat)


def _has_long_runs(concat: Op) -> bool:
    """Whether operands are contiguous in the concat, or in runs of enough bytes on average."""
    strides, dim = concat.result.layout, concat.int("dim")
    dim_stride = size_hint(strides[dim])
    extents = zip(strides, concat.result.shape, strict=True)
    if all(size_hint(s) <= dim_stride or n == 1 for s, n in extents):
        return True
    run_bytes = dim_stride * size_hint(concat.result.shape[dim]) * concat.result.dtype.itemsize
    return run_bytes >= MIN_RUN_BYTES * len(concat.inputs)


def _has_dense_strides(root: Value, strides: tuple[Dim, ...]) -> bool:
    """Whether these are the strides that a value has in memory of its own."""
    return equal_strides(dense_strides(root), strides, root.shape)
