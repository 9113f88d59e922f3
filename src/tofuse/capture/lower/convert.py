"""An FX graph of ATen calls as a Graph."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Union

import torch
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule, Node
from torch.fx.node import Argument as FxArgument

from tofuse.capture.fx.dtypes import dtype_of
from tofuse.capture.fx.eager_memory import EagerMemory, memory_of
from tofuse.capture.fx.location import locate
from tofuse.capture.fx.sizes import Sizes, Source
from tofuse.capture.lower.builder import Builder, Refused
from tofuse.capture.lower.call import (
    Argument,
    Call,
    Made,
    Rule,
    Text,
)
from tofuse.capture.lower.effect_tokens import without_tokens
from tofuse.capture.lower.executor_claims import Claims, claimed, nobody
from tofuse.capture.lower.lowerable import fusible
from tofuse.capture.lower.lowering_cache import Repeats, Results
from tofuse.capture.lower.opaque import opaque
from tofuse.capture.lower.reads_after_writes import reads_written
from tofuse.capture.lower.rules.constant_indices import RESAMPLES
from tofuse.capture.lower.rules.creation import CREATION
from tofuse.capture.lower.rules.depthwise_convolution import DEPTHWISE
from tofuse.capture.lower.rules.memory_order import MEMORY
from tofuse.capture.lower.rules.pointwise import POINTWISE
from tofuse.capture.lower.rules.pooling import POOLING
from tofuse.capture.lower.rules.reductions import REDUCTIONS
from tofuse.capture.lower.rules.scatter import SCATTERS
from tofuse.capture.lower.rules.view_ops import VIEWS
from tofuse.errors import CaptureError, VerifyError
from tofuse.ir.dims import Dim, SymDim
from tofuse.ir.graph import Graph, Op, Scalar, Value
from tofuse.ir.types import DType, TensorType
from tofuse.ops.table import Pattern, opdef

Result = Union[Value, Dim, Text, Sequence[Union[Value, Dim, None]], None]  # noqa: UP007  (run time)
AtenGraph = GraphModule  # an FX graph of ATen operators


@dataclass(frozen=True)
class Captured:
    """A Graph and how the flat arguments and outputs of the FX graph map to it.

    `writes` are pairs of an argument and the value it gets when the program ends; these values
    are the last outputs of the graph. `again` are places of results that are an earlier one's
    value in a tensor of their own. `notes` are for the report.
    """

    graph: Graph
    arguments: tuple[Value | Dim | None, ...]
    results: tuple[Value | Dim | None, ...]
    constants: tuple[tuple[Value, torch.Tensor], ...]
    symbols: dict[str, Source]
    memory: EagerMemory | None = None
    writes: tuple[tuple[Value, Value], ...] = ()
    notes: tuple[str, ...] = ()
    again: tuple[int, ...] = ()


NOTES = "tofuse_notes"  # in an FX graph's meta: what the report shall say of it


def convert(gm: GraphModule, name: str, claims: Claims = nobody) -> Captured:
    """Bring an ATen graph into a Graph; CaptureError where that is impossible.

    Calls without a rule, calls that their rule refuses, and calls but views that an executor
    claims become `opaque` ops.
    """
    return _Converter(without_tokens(gm), claims).run(name)


def can_fuse(node: Node) -> bool:
    """Whether a call has a rule that takes it, as far as its operator, types and readers tell."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    rule = rule_of(node.target)
    if rule is None:
        return False
    return fusible(node, node.target)


@lru_cache(maxsize=4096)
def rule_of(target: object) -> Rule | None:
    """The rule of an ATen overload, by its full name or by the name of all its overloads."""
    full = str(target)
    return RULES.get(full) or RULES.get(full.rpartition(".")[0])


@dataclass
class _Converter:
    gm: GraphModule
    claims: Claims = nobody
    build: Builder = field(default_factory=lambda: Builder(Sizes()))
    env: dict[Node, Result] = field(default_factory=dict)
    constants: list[tuple[Value, torch.Tensor]] = field(default_factory=list)
    writes: list[tuple[Value, Value]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.repeats = Repeats(self.build)

    def run(self, name: str) -> Captured:
        nodes = list(self.gm.graph.nodes)
        arguments = self._arguments([n for n in nodes if n.op == "placeholder"])
        outputs: tuple[Value | Dim | None, ...] = ()
        for node in nodes:
            self.build.loc = locate(node)
            if node.op == "call_function":
                self._call(node)
            elif node.op == "get_attr":
                self.env[node] = self._constant(node)
            elif node.op == "output":
                outputs = self._outputs(node)
            elif node.op != "placeholder":
                raise CaptureError(f"{node.op} is not supported{self._where()}")
        inputs = [a for a in arguments if isinstance(a, Value)]
        inputs += [v for v, _ in self.constants]
        results = tuple(r if isinstance(r, Value) else None for r in outputs)
        results += tuple(new for _, new in self.writes)
        graph = Graph(tuple(inputs), tuple(self.build.ops), results, name)
        symbols, writes = self.build.sizes.sources, tuple(self.writes)
        memory = memory_of(self.gm)
        constants, notes = tuple(self.constants), tuple(self.gm.meta.get(NOTES, ()))
        again = self._again(nodes[-1])
        return Captured(graph, arguments, outputs, constants, symbols, memory, writes, notes, again)

    def _arguments(self, nodes: list[Node]) -> tuple[Value | Dim | None, ...]:
        """Learn every symbol before any size is read, integers first."""
        sizes = self.build.sizes
        values = [n.meta.get("val") for n in nodes]
        for k, value in enumerate(values):
            if isinstance(value, torch.SymInt):
                sizes.learn_argument(k, value)
        for k, value in enumerate(values):
            if isinstance(value, torch.Tensor) and value.layout is torch.strided:
                sizes.learn_tensor(k, value)
        sizes.solve()
        found: list[Value | Dim | None] = []
        for node, value in zip(nodes, values, strict=True):
            argument = self._argument(node, value)
            found.append(argument)
            self.env[node] = argument
        return tuple(found)

    def _argument(self, node: Node, value: object) -> Value | Dim | None:
        if isinstance(value, torch.Tensor):
            return self._value(value, node.name)
        if isinstance(value, (int, torch.SymInt)):
            return self.build.sizes.dim(value)
        if node.users:
            raise CaptureError(f"an argument of type {type(value).__name__} is not supported")
        return None

    def _value(self, tensor: torch.Tensor, name: str) -> Value:
        plain = tensor.layout is torch.strided and not tensor.is_conj() and not tensor.is_neg()
        dtype = dtype_of(tensor.dtype) if plain else DType.OTHER
        type_ = TensorType(self.build.sizes.shape(tensor.shape), dtype, str(tensor.device))
        # AOTAutograd guesses that gradients lie as the results do: none lie on one another.
        guessed = name.startswith("tangents_") and not is_non_overlapping_and_dense_or_false(tensor)
        laid = plain and not guessed
        return Value(type_, name, self.build.sizes.layout(tensor) if laid else None)

    def _constant(self, node: Node) -> Result:
        """A tensor the FX graph holds: one number becomes `full`, others become inputs."""
        held: object = self.gm
        for part in str(node.target).split("."):
            held = getattr(held, part)
        if not isinstance(held, torch.Tensor):
            raise CaptureError(
                f"a {type(held).__name__} inside the graph is not supported{self._where()}"
            )
        value = self._value(held, node.name)
        if held.numel() == 1 and value.dtype != DType.OTHER and held.device.type == "cpu":
            with unset_fake_temporarily():
                return self.build.full(value.shape, Scalar(held.item()), value.dtype)
        self.constants.append((value, held))
        return value

    def _call(self, node: Node) -> None:
        value = node.meta.get("val")
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, bool, int, float)):
            self.env[node] = self._number(value)
        elif node.target is operator.getitem:
            held, place = self.env[node.args[0]], node.args[1]  # type: ignore[index]  # a Node
            assert isinstance(held, list) and isinstance(place, int)
            self.env[node] = held[place]
        elif str(node.target).rpartition(".")[0] in DROPPED:
            return
        elif node.target is torch.ops.aten.copy_.default:
            self._write(node)
        elif self.writes and reads_written(node):
            raise CaptureError(f"{node.target} after a write into an argument{self._where()}")
        elif not isinstance(node.target, torch._ops.OpOverload):
            raise CaptureError(f"{node.target} is not supported{self._where()}")
        else:
            try:
                self.env[node] = self._aten(node, node.target)
            except CaptureError as error:
                raise CaptureError(f"{error}{self._where()}") from error

    def _write(self, node: Node) -> None:
        """An argument's new value: AOTAutograd writes them all at the end."""
        target, new = (self.env.get(a) for a in node.args[:2] if isinstance(a, Node))
        argument = isinstance(node.args[0], Node) and node.args[0].op == "placeholder"
        if not argument or not isinstance(target, Value) or not isinstance(new, Value):
            raise CaptureError(f"a write into what is no argument{self._where()}")
        if target.type != new.type:
            raise CaptureError(f"a write of {new.type!r} into {target.type!r}{self._where()}")
        self.writes.append((target, new))
        self.env[node] = new

    def _number(self, value: object) -> Result:
        if isinstance(value, torch.SymInt):
            return self.build.sizes.dim(value)
        if isinstance(value, (torch.SymFloat, torch.SymBool)):
            return Text(self.build.sizes.text(value))
        return value if isinstance(value, int) else Text(repr(value))

    def _aten(self, node: Node, target: torch._ops.OpOverload) -> Result:
        args = [self._resolve(a) for a in node.args]
        kwargs = {k: self._resolve(a) for k, a in node.kwargs.items()}
        names, defaults = _schema(target)
        named = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        call = Call(self.build, node, named)
        rule, mark = rule_of(target), len(self.build.ops)
        taken = claimed(node, self.claims) and str(target).rpartition(".")[0] not in VIEWS
        if rule is not None and not taken and fusible(node, target):
            try:
                return self._ruled(call, rule, mark)
            except Refused:
                del self.build.ops[mark:]
            except VerifyError:
                if not self.build.sizes.sources:
                    raise
                del self.build.ops[mark:]  # only torch's guards tell that two sizes are equal
        return opaque(call, args, kwargs)

    def _ruled(self, call: Call, rule: Rule, mark: int) -> Result:
        """What a rule makes of a call, or made of one like it."""
        operands, base = dict[Value, int](), self.build.count
        seen = rule not in UNSEEN
        key = self.repeats.key(call, operands) if seen else None
        if key is not None and key in self.repeats.known:
            return self.repeats.again(self.repeats.known[key], operands, call.node.name)
        self.build.device = _device(call.node)
        found = self._finals(call, rule(call), mark)
        if key is not None:
            self.repeats.learn(key, operands, found, mark, base)
        return found

    def _finals(self, call: Call, found: Made, mark: int) -> Results:
        """Check a rule's results against torch's, and give them torch's strides."""
        single = isinstance(found, Value)
        results = self._owned(call, [found] if isinstance(found, Value) else found, mark)
        tensors = [call.node.meta["val"]] if single else list(call.node.meta["val"])
        fresh = {r for op in self.build.ops[mark:] for r in op.results}
        finals: dict[Value, Value] = {}
        for k, (result, tensor) in enumerate(zip(results, tensors, strict=True)):
            if result is None:
                continue
            if result.type != call.type_of(tensor):
                raise Refused(f"{result.type} is not what torch gives: {call.type_of(tensor)}")
            if result in fresh and result not in finals:
                name = call.node.name if single else f"{call.node.name}_r{k}"
                strides = self.build.sizes.layout(tensor)
                finals[result] = replace(result, name=name, strides=strides)
        self.build.rename(mark, finals)
        final = [r and finals.get(r, r) for r in results]
        return final[0] if single and final[0] else final

    def _owned(
        self, call: Call, results: Sequence[Value | None], mark: int
    ) -> Sequence[Value | None]:
        """Copies of results that are mere views, where ATen's operator returns no view."""
        target = call.node.target
        assert isinstance(target, torch._ops.OpOverload)
        if any(r.alias_info for r in target._schema.returns) or str(target) in GIVEN_AWAY:
            return results
        made = {r: op for op in self.build.ops[mark:] for r in op.results}
        return [r if r is None or _is_fresh(r, made) else self.build.copy(r) for r in results]

    def _resolve(self, argument: FxArgument) -> Argument:
        if isinstance(argument, Node):
            held = self.env.get(argument)
            return list(held) if isinstance(held, list) else held
        if isinstance(argument, (list, tuple)):
            return [self._resolve(a) for a in argument]
        return argument  # type: ignore[return-value]  # a constant; rendering checks its type

    def _outputs(self, node: Node) -> tuple[Value | Dim | None, ...]:
        found: list[Value | Dim | None] = []
        outputs = node.args[0]
        assert isinstance(outputs, (list, tuple))
        for output in outputs:
            value = self.env[output] if isinstance(output, Node) else output
            if not isinstance(value, (Value, int, SymDim, type(None))):
                raise CaptureError(f"an output of type {type(value).__name__} is not supported")
            found.append(value)
        return tuple(found)

    def _again(self, node: Node) -> tuple[int, ...]:
        """Results that are the value of an earlier one, but another tensor: autograd may treat the
        two differently, as it does where one is detached."""
        first: dict[Result, object] = {}
        outputs = node.args[0]
        assert isinstance(outputs, (list, tuple))
        pairs = [(k, n, self.env[n]) for k, n in enumerate(outputs) if isinstance(n, Node)]
        tensors = [(k, n, v) for k, n, v in pairs if isinstance(v, Value)]
        return tuple(k for k, n, v in tensors if first.setdefault(v, n) is not n)

    def _where(self) -> str:
        loc = self.build.loc
        return f" ({loc.file}:{loc.line}: {loc.code})" if loc else ""


def _device(node: Node) -> str:
    """Where a call's first result lies."""
    value = node.meta.get("val")
    first = value[0] if isinstance(value, (list, tuple)) and value else value
    return str(first.device) if isinstance(first, torch.Tensor) else "cpu"


def _is_fresh(value: Value, made: Mapping[Value, Op]) -> bool:
    """Whether a value has memory of its own: it, or what it relabels, is computed in `made`."""
    while value in made and opdef(made[value].kind).pattern is Pattern.VIEW:
        value = made[value].inputs[0]
    return value in made and opdef(made[value].kind).pattern is not Pattern.BROADCAST


@lru_cache(maxsize=4096)
def _schema(target: torch._ops.OpOverload) -> tuple[tuple[str, ...], dict[str, Argument]]:
    """The names of an overload's arguments, and their defaults."""
    arguments = target._schema.arguments
    defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}
    return tuple(a.name for a in arguments), defaults


# Checks of sizes, which guards and torch's own shape rules have already made.
DROPPED = frozenset(
    (
        "aten._assert_scalar",
        "aten._functional_assert_scalar",
        "aten._assert_tensor_metadata",
        "aten.sym_constrain_range",
        "aten.sym_constrain_range_for_size",
    )
)

# Views by their schema no views: nobody else holds what they are given.
GIVEN_AWAY = frozenset(("aten._unsafe_view.default", "aten.lift.default"))

RULES: Mapping[str, Rule] = {
    **POINTWISE,
    **VIEWS,
    **SCATTERS,
    **RESAMPLES,
    **MEMORY,
    **REDUCTIONS,
    **POOLING,
    **DEPTHWISE,
    **CREATION,
}

UNSEEN = (*MEMORY.values(), *RESAMPLES.values())  # what these make, arguments' types do not tell
