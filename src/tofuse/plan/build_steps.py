"""Partition -> the steps of a call: allocations, launches, library calls, views and copies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tofuse.analysis.alias import EXCLUSIVE_RESULTS, MemRef, is_eliminated_concat, packed_operand
from tofuse.cost.machine import SMALLEST_POOLED
from tofuse.graph_partition import Partition
from tofuse.ir.call_arguments import CallArguments, TensorRef
from tofuse.ir.dims import Dim, product, size_hint, symbol
from tofuse.ir.graph import Op, Value
from tofuse.ir.plan import (
    Address,
    Allocate,
    Call,
    Launch,
    OutVariant,
    Parameter,
    Plan,
    Result,
    Step,
    View,
    variable,
)
from tofuse.ir.region import Region
from tofuse.ir.types import DType
from tofuse.plan.kernel_binding import KernelBinding
from tofuse.plan.signature import CallSignature

COPY = "aten.copy_.default"  # of the second tensor into the first


def inline_reversed_views(region: Region, partition: Partition) -> Region:
    """Return a region with the same results whose inputs all are tensors torch can represent.

    Torch has no negative strides, so the ops that make such views become part of the region.
    """
    work = [v for v in region.inputs if _has_negative_stride(partition.aliases.memrefs.get(v))]
    if not work:
        return region
    producers = {r: op for op in partition.graph.ops for r in op.results}
    wanted = {r for op in region.ops for r in op.results}
    while work:
        op = producers[work.pop()]
        wanted.update(op.results)
        work += [v for v in op.inputs if _has_negative_stride(partition.aliases.memrefs.get(v))]
    ops = tuple(op for op in partition.graph.ops if not wanted.isdisjoint(op.results))
    return replace(region, ops=ops)


def _has_negative_stride(memref: MemRef | None) -> bool:
    return memref is not None and any(size_hint(s) < 0 for s in memref.strides)


@dataclass(eq=False)
class StepBuilder:
    """The steps of a plan, one after the other; see `build_plan` for its parameters.

    `exclusive` gets the layouts of library calls' results that alias nothing.
    """

    partition: Partition
    signature: CallSignature
    bindings: Mapping[Region, KernelBinding]
    donations: Mapping[Value, Value]
    executor_targets: Mapping[Region, str]
    out_variant: Callable[[str], OutVariant | None]
    steps: list[Step] = field(default_factory=list)
    views: dict[Value, str] = field(default_factory=dict)  # names of views made so far
    exclusive: list[Allocate] = field(default_factory=list)
    allocated_concats: set[Value] = field(default_factory=set)
    packed: frozenset[Value | None] = frozenset()  # arguments without strides
    operands_to_copy: dict[Value, None] = field(default_factory=dict)  # of concats: by PyTorch

    def run(self) -> Plan:
        """Return a plan without releases; results share memory only by views and donation."""
        for k, region in enumerate(self.partition.regions):
            if is_eliminated_concat(region.ops[-1]):
                self._finish_concat(region.ops[-1])
            elif region in self.bindings:
                self._launch(region, self.bindings[region])
            elif region.library:
                op = region.ops[0]
                target = self.executor_targets.get(region, str(op.attr("target")))
                self._library_call(op, target)
            else:
                self._fallback(region, k)
        self._copy_mutations()
        signature = self.signature
        results = tuple(self._result(k, r) for k, r in enumerate(signature.results))
        self.packed = frozenset(map(packed_operand, self.partition.graph.ops))
        parameters = tuple(self._parameter(k, a) for k, a in enumerate(signature.arguments))
        symbols = tuple(signature.symbols.items())
        return Plan(self.partition.graph.name, parameters, symbols, tuple(self.steps), results)

    # -- arguments and results -------------------------------------------------------------------

    def _parameter(self, k: int, argument: Value | Dim | None) -> Parameter:
        if isinstance(argument, Value):
            written = any(argument is target for target, _ in self.signature.mutations)
            layout = None if argument in self.packed else argument.layout
            return Parameter(variable(argument), layout, written)
        return Parameter(self._scalar_name(k), None)

    def _scalar_name(self, k: int) -> str:
        """Return a name for an argument that is not a tensor; no size symbol has that name."""
        name = f"n{k}"
        while name in self.signature.symbols:
            name += "_"
        return name

    def _result(self, k: int, result: Value | Dim | None) -> Result:
        if isinstance(result, Value):
            tensor = self._tensor(result)
            same_as = dict(self.signature.duplicates).get(k)
            if same_as is None:
                return tensor
            if same_as < k:
                return f"{tensor}_duplicate{same_as}"
            strides = self.partition.aliases.memrefs[result].strides
            self.steps.append(View(f"{tensor}_duplicate{k}", tensor, result.shape, strides, 0))
            return f"{tensor}_duplicate{k}"
        return result

    def _copy_mutations(self) -> None:
        """Copy new values into the arguments, except those computed there."""
        mutations, donations = self.signature.mutations, self.donations
        copied = [(t, v) for t, v in mutations if v is not t and v not in donations]
        copied += [(t, v) for t, v in mutations if donations.get(v, t) is not t]
        mutated = {target for target, _ in mutations}
        copies: list[Step] = []
        for target, new in copied:
            source = self._tensor(new)
            if self.partition.aliases.owner(new) in mutated:  # an earlier copy may overwrite it
                saved = f"t_old{len(copies)}_{variable(target)}"
                clone = CallArguments((TensorRef(source),))
                self.steps.append(Call("aten.clone.default", clone, (saved,), (), (None,)))
                source = saved
            copies.append(_copy(variable(target), source))
        self.steps += copies

    # -- memory ----------------------------------------------------------------------------------

    def _concat_slice(self, v: Value) -> MemRef | None:
        """Return the slice of a concat that a value is written into; None if there is none."""
        return None if v in self.operands_to_copy else self.partition.aliases.slices.get(v)

    def _address(self, v: Value) -> Address:
        """Return the memory that a launch reads or writes for a value: `t_x` or `t_cat+64`."""
        memref = self._concat_slice(v)
        if memref is None:
            return Address(self._allocated(v))
        nbytes = product((memref.offset, v.dtype.itemsize))
        if not isinstance(nbytes, int):
            return Address(self._tensor(v))
        return Address(variable(memref.root), nbytes)

    def _allocated(self, v: Value) -> str:
        """Return the name of the tensor that has the memory of a value."""
        return variable(self.donations.get(v, v))

    def _tensor(self, v: Value) -> str:
        """Return the name of a value's tensor; add a view step if the value shares memory."""
        memref = self.partition.aliases.memrefs[v]
        if memref.root is v and self._concat_slice(v) is None:
            return self._allocated(v)
        if v not in self.views:
            name = self.views[v] = variable(v)
            outer = self._concat_slice(memref.root) or MemRef(memref.root, 0, memref.strides)
            source, offset = self._allocated(outer.root), outer.offset + memref.offset
            self.steps.append(View(name, source, v.shape, memref.strides, offset))
        return self.views[v]

    def _allocate(self, v: Value) -> None:
        self.steps.append(self._allocation(v))

    def _allocation(self, v: Value) -> Allocate:
        strides = self.partition.aliases.memrefs[v].strides
        return Allocate(variable(v), v.shape, strides, v.dtype, v.type.device)

    def _allocate_concat(self, concat: Value) -> None:
        """Allocate a concat before the first operand is written into it."""
        if concat not in self.allocated_concats:
            self._allocate(concat)
            self.allocated_concats.add(concat)

    # -- regions ---------------------------------------------------------------------------------

    def _launch(self, region: Region, binding: KernelBinding) -> None:
        for v in region.outputs:
            memref = self._concat_slice(v)
            if memref is not None:
                self._allocate_concat(memref.root)
            elif v not in self.donations:
                self._allocate(v)
        names = tuple(map(self._address, binding.arguments))
        self.steps.append(Launch(binding.kernel, region.name, names, binding.sizes))

    def _finish_concat(self, op: Op) -> None:
        """Copy the operands that PyTorch computed into the concat; kernels wrote the others."""
        (concat,) = op.results
        self._allocate_concat(concat)
        slices = self.partition.aliases.slices
        for v in (v for v in self.operands_to_copy if slices[v].root is concat):
            memref = slices[v]
            name = f"{variable(v)}_slice"
            self.steps.append(View(name, variable(concat), v.shape, memref.strides, memref.offset))
            self.steps.append(_copy(name, variable(v)))

    def _library_call(self, op: Op, target: str) -> None:
        own = str(op.attr("target"))
        tensors = [TensorRef(self._tensor(v)) for v in op.inputs]
        arguments = op.arguments.map_operands(tensors.__getitem__)
        picks = op.ints("picks") if any(k == "picks" for k, _ in op.attrs) else ()
        names = tuple(variable(r) for r in op.results)
        if op.results and op.results[0] in self.donations:
            self._update_argument(op, target, arguments)
            return
        variant = self._usable_out_variant(op, picks) if target == own else None
        if variant is not None and all(
            size_hint(r.type.nbytes) >= SMALLEST_POOLED for r in op.results
        ):
            for r in op.results:
                self._allocate(r)
            if variant.names:
                outs = zip(variant.names, map(TensorRef, names), strict=True)
                arguments = replace(arguments, keyword=(*arguments.keyword, *outs))
            else:
                self.steps.append(_copy(names[0], tensors[0].name))
                tensors[0] = TensorRef(names[0])
                arguments = op.arguments.map_operands(tensors.__getitem__)
            self.steps.append(Call(variant.target, arguments, (), (), ()))
            return
        # an operator with an out variant never returns an operand's memory
        if variant is not None or target in EXCLUSIVE_RESULTS:
            self.exclusive += map(self._allocation, op.results)
        sparse = ("strided", False) in op.attrs
        strides = tuple(None if sparse else r.layout for r in op.results)
        # an executor checks the sizes that its arguments determine
        checked = op.results if ("check_shapes", True) in op.attrs or target != own else ()
        shapes = tuple(r.shape for r in checked)
        dtypes = tuple(r.dtype for r in op.results)
        self.steps.append(Call(target, arguments, names, picks, strides, shapes, dtypes))

    def _update_argument(self, op: Op, target: str, arguments: CallArguments) -> None:
        """Call an operator whose result is the new value of an argument, its first operand."""
        argument, own = variable(op.inputs[0]), str(op.attr("target"))
        variant = self.out_variant(own) if target == own else None
        if variant is None:
            result = f"{argument}_new"
            self.steps.append(Call(target, arguments, (result,), (), (op.results[0].layout,)))
            self.steps.append(_copy(argument, result))
            return
        outs = tuple((name, TensorRef(argument)) for name in variant.names)
        arguments = replace(arguments, keyword=(*arguments.keyword, *outs))
        self.steps.append(Call(variant.target, arguments, (), (), ()))

    def _usable_out_variant(self, op: Op, picks: Sequence[int]) -> OutVariant | None:
        """Return the out variant of a library call if it writes dense results where we say."""
        if {("strided", False), ("check_shapes", True)} & {*op.attrs} or not all(
            map(_is_dense_on_cpu, op.results)
        ):
            return None
        # some operators give the result, even in `out=`, the memory format of an image operand
        if any(len(v.shape) > 3 and not v.is_row_major for v in op.inputs):
            return None
        variant = self.out_variant(str(op.attr("target")))
        if variant is None or tuple(picks or (0,)) != tuple(range(len(variant.names) or 1)):
            return None
        repeated = op.arguments.operand_indices.count(0) > 1  # PyTorch refuses to read it, too
        if not variant.names and (repeated or op.inputs[0].type != op.results[0].type):
            return None
        return variant

    def _fallback(self, region: Region, number: int) -> None:
        """Call a region that has no kernel: PyTorch runs it op by op."""
        region = inline_reversed_views(region, self.partition)
        operands = dict.fromkeys(v for v in region.outputs if v in self.partition.aliases.slices)
        self.operands_to_copy |= operands
        tensors = tuple(TensorRef(self._tensor(v)) for v in region.inputs)
        names = tuple(variable(v) for v in region.outputs)
        strides = tuple(self.partition.aliases.memrefs[v].strides for v in region.outputs)
        picks = tuple(range(len(names)))
        arguments = CallArguments((tensors,), tuple((s, symbol(s)) for s in self.signature.symbols))
        self.steps.append(Call(f"region{number}", arguments, names, picks, strides))


def _copy(target: str, source: str) -> Call:
    arguments = CallArguments((TensorRef(target), TensorRef(source)))
    return Call(COPY, arguments, (), (), ())


def _is_dense_on_cpu(v: Value) -> bool:
    return v.type.on_host and v.dtype is not DType.OTHER and v.is_row_major
