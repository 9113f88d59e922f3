"""The conversion of an FX graph of ATen calls to a Graph."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Union

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import Argument as FxArgument

from tofuse.capture.fx.aliases import reads_mutated_argument, shared_argument
from tofuse.capture.fx.devices import on_host
from tofuse.capture.fx.eager_memory import EagerMemory
from tofuse.capture.fx.location import source_location
from tofuse.capture.fx.node_tensors import value_tensors
from tofuse.capture.fx.sizes import SymbolicSizes
from tofuse.capture.lower.builder import Builder, Unsupported
from tofuse.capture.lower.call import Argument, AtenCall, RuleResult
from tofuse.capture.lower.collectives import operands_until_wait
from tofuse.capture.lower.executor_claims import ClaimPredicate, claim_nothing, is_claimed
from tofuse.capture.lower.lowerable import has_supported_arguments
from tofuse.capture.lower.lowering_rules import lowering_rule
from tofuse.capture.lower.opaque import lower_to_opaque
from tofuse.capture.lower.rules.view_ops import VIEW_RULES
from tofuse.errors import CaptureError, VerifyError
from tofuse.ir.dims import Dim, SymDim
from tofuse.ir.graph import Graph, Op, Scalar, Value
from tofuse.ir.size_expression import ArgumentSize, SizeSource, SizeTerm
from tofuse.ir.types import DType, TensorType
from tofuse.ops.reference import from_torch_dtype
from tofuse.ops.table import OPS, Pattern
from tofuse.torch_internals.fake_tensors import FakeScriptObject, unset_fake_temporarily
from tofuse.torch_internals.layouts import is_dense_or_false
from tofuse.torch_internals.operators import OpOverload, schema_of

LoweredValue = Union[Value, SizeTerm, Sequence[Union[Value, Dim, None]], None]  # noqa: UP007  (run time)


@dataclass(frozen=True)
class CapturedGraph:
    """A Graph, and how the flat arguments and outputs of the FX graph map to it.

    `writes` pairs an argument with its value at the end of the program; these values are the last
    outputs of the graph. `duplicate_results` are pairs of indices: a result that has the value of
    an earlier result but is another tensor, and the first result that is this tensor. `notes` are
    for the report.
    """

    graph: Graph
    arguments: tuple[Value | Dim | None, ...]
    results: tuple[Value | Dim | None, ...]
    constants: tuple[tuple[Value, torch.Tensor], ...]
    symbols: dict[str, SizeSource]
    eager_memory: EagerMemory | None = None
    writes: tuple[tuple[Value, Value], ...] = ()
    notes: tuple[str, ...] = ()
    duplicate_results: tuple[tuple[int, int], ...] = ()

    @property
    def has_derived_sizes(self) -> bool:
        """Whether a size depends on others (`s0 // 4`).

        Size hints are chosen independently and contradict such a size: byte counts mean nothing.
        """
        return not all(isinstance(source, ArgumentSize) for source in self.symbols.values())


def convert(
    gm: GraphModule,
    name: str,
    claims: ClaimPredicate = claim_nothing,
    memory: EagerMemory | None = None,
    notes: tuple[str, ...] = (),
) -> CapturedGraph:
    """Return the Graph of an ATen graph with the program's memory and notes for the report.

    Raises CaptureError if there is none.

    A call becomes an `opaque` op if it has no rule, if its rule does not support it, or if an
    executor claims it and it is no view.
    """
    sizes = SymbolicSizes(keep_unit_strides=name != "backward")
    captured = _Converter(gm, claims, Builder(sizes)).run(name)
    return replace(captured, eager_memory=memory, notes=notes)


@dataclass
class _Converter:
    gm: GraphModule
    claims: ClaimPredicate
    build: Builder
    env: dict[Node, LoweredValue] = field(default_factory=dict)
    constants: list[tuple[Value, torch.Tensor]] = field(default_factory=list)
    writes: list[tuple[Value, Value]] = field(default_factory=list)

    def run(self, name: str) -> CapturedGraph:
        nodes = list(self.gm.graph.nodes)
        arguments = self._arguments([n for n in nodes if n.op == "placeholder"])
        outputs: list[Value | Dim | None] = []
        duplicates: list[tuple[int, int]] = []
        for node in nodes:
            self.build.loc = loc = source_location(node)
            try:
                if node.op == "call_function":
                    self._lower_call(node)
                elif node.op == "get_attr":
                    self.env[node] = self._constant(node)
                elif node.op == "output":
                    outputs, duplicates = self._outputs(node)
                elif node.op != "placeholder":
                    raise CaptureError(f"{node.op} is not supported")
            except CaptureError as error:
                place = f" ({loc.file}:{loc.line}: {loc.code})" if loc else ""
                raise CaptureError(f"{error}{place}") from error
        inputs = [a for a in arguments if isinstance(a, Value)]
        inputs += [v for v, _ in self.constants]
        results = tuple(r if isinstance(r, Value) else None for r in outputs)
        results += tuple(new for _, new in self.writes)
        graph = Graph(tuple(inputs), tuple(self.build.ops), results, name)
        return CapturedGraph(
            graph,
            arguments,
            tuple(outputs),
            tuple(self.constants),
            self.build.sizes.sources,
            writes=tuple(self.writes),
            duplicate_results=tuple(duplicates),
        )

    def _arguments(self, nodes: list[Node]) -> tuple[Value | Dim | None, ...]:
        """Convert the arguments; record every symbol before a size is read, integers first."""
        sizes = self.build.sizes
        values = [n.meta.get("val") for n in nodes]
        for k, value in enumerate(values):
            if isinstance(value, (torch.SymInt, torch.SymFloat)):
                sizes.add_argument(k, value)
        for k, value in enumerate(values):
            if isinstance(value, torch.Tensor) and value.layout is torch.strided:
                sizes.add_tensor(k, value)
        sizes.solve()
        found = tuple(map(self._argument, nodes, values))
        self.env |= zip(nodes, found, strict=True)
        for node, value in zip(nodes, values, strict=True):
            if isinstance(value, torch.SymFloat):
                self.env[node] = sizes.term(value)
        return found

    def _argument(self, node: Node, value: object) -> Value | Dim | None:
        if isinstance(value, torch.Tensor):
            return self._value(value, node.name)
        if isinstance(value, FakeScriptObject):  # such as the mesh of a DTensor
            return Value(TensorType((), DType.OTHER), node.name)
        if isinstance(value, (int, torch.SymInt)):
            return self.build.sizes.dim(value)
        if node.users and not isinstance(value, torch.SymFloat):
            raise CaptureError(f"an argument of type {type(value).__name__} is not supported")
        return None

    def _value(self, tensor: torch.Tensor, name: str) -> Value:
        plain = tensor.layout is torch.strided and not tensor.is_conj() and not tensor.is_neg()
        dtype = from_torch_dtype(tensor.dtype) if plain else DType.OTHER
        type_ = TensorType(self.build.sizes.shape(tensor.shape), dtype, str(tensor.device))
        # AOTAutograd assumes that tangents have the strides of the results. A tangent of
        # overlapping elements never occurs, so such strides are dropped.
        assumed = name.startswith("tangents_") and not is_dense_or_false(tensor)
        has_strides = plain and not assumed
        return Value(type_, name, self.build.sizes.layout(tensor) if has_strides else None)

    def _constant(self, node: Node) -> LoweredValue:
        """Convert an attribute of the FX graph: one number to `full`, other tensors to inputs."""
        attribute: object = operator.attrgetter(str(node.target))(self.gm)
        if not isinstance(attribute, torch.Tensor):
            raise CaptureError(f"a {type(attribute).__name__} inside the graph is not supported")
        value = self._value(attribute, node.name)
        if attribute.numel() == 1 and value.dtype != DType.OTHER and on_host(attribute):
            with unset_fake_temporarily():
                return self.build.full(value.shape, Scalar(attribute.item()), value.dtype)
        self.constants.append((value, attribute))
        return value

    def _lower_call(self, node: Node) -> None:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            self.env[node] = self.build.sizes.dim(value)
        elif isinstance(value, (torch.SymFloat, torch.SymBool)):
            self.env[node] = self.build.sizes.term(value)
        elif isinstance(value, (bool, int, float)):
            self.env[node] = value
        elif node.target is operator.getitem:
            results, index = self.env[node.args[0]], node.args[1]  # type: ignore[index]  # a Node
            assert isinstance(results, list) and isinstance(index, int)
            self.env[node] = results[index]
        elif is_size_check(node):
            return
        elif node.target is torch.ops.aten.copy_.default:
            self._lower_write(node)
        elif self.writes and reads_mutated_argument(node):
            raise CaptureError(f"{node.target} after a write into an argument")
        elif not isinstance(node.target, OpOverload):
            raise CaptureError(f"{node.target} is not supported")
        else:
            self.env[node] = self._lower_aten(node, node.target)

    def _lower_write(self, node: Node) -> None:
        """Record an argument's new value; AOTAutograd puts all such writes at the end."""
        target, new = (self.env.get(a) for a in node.args[:2] if isinstance(a, Node))
        is_argument = isinstance(node.args[0], Node) and node.args[0].op == "placeholder"
        if not is_argument or not isinstance(target, Value) or not isinstance(new, Value):
            raise CaptureError("a write into a tensor that is not an argument")
        if target.type != new.type:
            raise CaptureError(f"a write of {new.type!r} into {target.type!r}")
        self.writes.append((target, new))
        self.env[node] = new

    def _lower_aten(self, node: Node, target: OpOverload) -> LoweredValue:
        args = [self._resolve(a) for a in node.args]
        kwargs = {k: self._resolve(a) for k, a in node.kwargs.items()}
        names, defaults = _schema(target)
        named = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        fx_named = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        call = AtenCall(self.build, node, named, fx_named)
        rule, start = lowering_rule(target), len(self.build.ops)
        is_view = str(target).rpartition(".")[0] in VIEW_RULES
        claimed = not is_view and is_claimed(node, self.claims)
        if rule is not None and not claimed and has_supported_arguments(node, target):
            try:
                devices = (str(t.device) for t in value_tensors(node))
                self.build.device = next(devices, "cpu")
                return self._finish_results(call, rule(call), start)
            except Unsupported:
                del self.build.ops[start:]
            except VerifyError:
                if not self.build.sizes.sources:
                    raise
                del self.build.ops[start:]  # two sizes are equal only by a guard of torch
        after = [self._resolve(n) for n in operands_until_wait(node)]
        return lower_to_opaque(call, args, kwargs, after)

    def _finish_results(self, call: AtenCall, made: RuleResult, start: int) -> LoweredValue:
        """Check a rule's results against torch's types; give them torch's strides and names."""
        single = isinstance(made, Value)
        values = [made] if isinstance(made, Value) else made
        results = self._copy_undeclared_views(call, values, start)
        tensors = [call.node.meta["val"]] if single else list(call.node.meta["val"])
        computed = {r for op in self.build.ops[start:] for r in op.results}
        renamed: dict[Value, Value] = {}
        for k, (result, tensor) in enumerate(zip(results, tensors, strict=True)):
            if result is None:
                continue
            if result.type != call.type_of(tensor):
                raise Unsupported(f"{result.type} is not torch's type: {call.type_of(tensor)}")
            if result in computed and result not in renamed:
                name = call.node.name if single else f"{call.node.name}_r{k}"
                strides = self.build.sizes.layout(tensor)
                renamed[result] = replace(result, name=name, strides=strides)
        self.build.replace_results(start, renamed)
        final = [r and renamed.get(r, r) for r in results]
        return final[0] if single and final[0] else final

    def _copy_undeclared_views(
        self, call: AtenCall, results: Sequence[Value | None], start: int
    ) -> Sequence[Value | None]:
        """Copy results that are views if ATen's operator returns no view."""
        target = call.node.target
        assert isinstance(target, OpOverload)
        if shared_argument(target) is not None:
            return results
        producers = {r: op for op in self.build.ops[start:] for r in op.results}
        return [
            r if r is None or _has_own_memory(r, producers) else self.build.copy(r) for r in results
        ]

    def _resolve(self, argument: FxArgument) -> Argument:
        if isinstance(argument, Node):
            value = self.env.get(argument)
            return list(value) if isinstance(value, list) else value
        if isinstance(argument, (list, tuple)):
            return [self._resolve(a) for a in argument]
        return argument  # type: ignore[return-value]  # a constant; checked when printed

    def _outputs(self, node: Node) -> tuple[list[Value | Dim | None], list[tuple[int, int]]]:
        """Return the results, and pairs of indices of those with the value of an earlier node.

        The latter stay separate tensors: autograd may treat them differently, as with `detach`. A
        pair holds the index of such a result, and of the first result of its node.
        """
        found: list[Value | Dim | None] = []
        duplicates: list[tuple[int, int]] = []
        first_of: dict[object, int] = {}
        arguments = self.gm.graph.find_nodes(op="placeholder")
        first: dict[Value, object] = {
            value: n for n in arguments if isinstance(value := self.env.get(n), Value)
        }
        outputs = node.args[0]
        assert isinstance(outputs, (list, tuple))
        for k, output in enumerate(outputs):
            value = self.env[output] if isinstance(output, Node) else output
            if not isinstance(value, (Value, int, SymDim, type(None))):
                raise CaptureError(f"an output of type {type(value).__name__} is not supported")
            if isinstance(value, Value) and first.setdefault(value, output) is not output:
                duplicates.append((k, first_of.setdefault(output, k)))
            found.append(value)
        return found, duplicates


def _has_own_memory(value: Value, producers: Mapping[Value, Op]) -> bool:
    """Whether a value, or the base that it views, is computed by one of the producers."""
    while value in producers and OPS[producers[value].kind].pattern is Pattern.VIEW:
        value = producers[value].inputs[0]
    return value in producers and OPS[producers[value].kind].pattern is not Pattern.BROADCAST


def is_size_check(node: Node) -> bool:
    """Whether a node only checks sizes."""
    return str(node.target).rpartition(".")[0] in SIZE_CHECKS


@lru_cache(maxsize=4096)
def _schema(target: OpOverload) -> tuple[tuple[str, ...], dict[str, Argument]]:
    """Return the names of an overload's arguments, and their defaults."""
    arguments = schema_of(target).arguments
    defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}
    return tuple(a.name for a in arguments), defaults


# Checks of sizes that torch's guards and shape rules have made, that `check_shapes` makes, or that
# the outer graph makes (`split_data_dependent.py`).
SIZE_CHECKS = frozenset(
    (
        "aten._assert_scalar",
        "aten._functional_assert_scalar",
        "aten._assert_tensor_metadata",
        "aten.sym_constrain_range",
        "aten.sym_constrain_range_for_size",
    )
)
