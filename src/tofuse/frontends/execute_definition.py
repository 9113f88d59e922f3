"""Run a definition: compile an entry per input layout, check sizes, write aliased outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Union, cast

import torch

from tofuse.capture.fx.devices import is_supported
from tofuse.capture.lower.convert import CapturedGraph
from tofuse.config import Config
from tofuse.dispatch.dispatcher import Entry, EntryTable, Kind, never
from tofuse.driver.context import make_context
from tofuse.driver.pipeline import compile_captured
from tofuse.errors import DefinitionError, UnsupportedError
from tofuse.frontends.definition import (
    AddOutput,
    DefineTensor,
    OpCall,
    Statement,
    lower_statements,
)
from tofuse.frontends.input_layouts import stride_pattern
from tofuse.frontends.inputs import Input, InputSpec, PlanArgument, flatten_inputs, input_specs
from tofuse.frontends.items import Item, Node
from tofuse.frontends.lowering import Lowering
from tofuse.ir.dims import Dim, SymDim, evaluate, size_hint, symbol
from tofuse.ir.graph import Graph, Value
from tofuse.ir.size_expression import ArgumentSize, SizeSource
from tofuse.ir.types import HOST, is_host
from tofuse.ops.reference import argument_size, bind_symbols
from tofuse.report.model import GraphReport
from tofuse.torch_internals.dispatch import TensorGuards

Output = Union[torch.Tensor, int, list[int]]  # noqa: UP007
EntryKey = tuple[object, ...]
WHY = "inputs of these layouts and static sizes were given"
DEFAULT_SIZE = 64  # for symbolic sizes if a definition is compiled before its first run


@dataclass(frozen=True, eq=False)
class DefinitionEntry(Entry[Sequence[object]]):
    """A definition compiled for one device, one layout of the inputs, and some static sizes."""

    captured: CapturedGraph
    symbol_sources: Mapping[str, SizeSource]  # of the symbols in the checks of sizes
    lowering: Lowering
    report: GraphReport


def guard_of_last_call(
    flat: Sequence[PlanArgument], specs: Sequence[InputSpec]
) -> Callable[..., bool]:
    """Return a guard for calls like this one; it accepts none unless all are distinct tensors."""
    tensors = [x for x in flat if isinstance(x, torch.Tensor)]
    if not tensors or len({*map(id, tensors)}) != len(flat):
        return never
    if not all(isinstance(spec, DefineTensor) for spec in specs):
        return never
    return TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check


@dataclass
class DefinitionExecutor:
    """All entries of one definition; `last` runs calls like the last one."""

    name: str
    statements: Sequence[Statement]
    config: Config
    specialized: dict[str, ArgumentSize] = field(default_factory=dict)
    zero_specialized: dict[str, ArgumentSize] = field(default_factory=dict)
    entries: EntryTable[DefinitionEntry] = field(default_factory=EntryTable)
    last: DefinitionEntry | None = None

    def __post_init__(self) -> None:
        if not any(isinstance(s, (OpCall, DefineTensor)) for s in self.statements):
            raise NotImplementedError("Fusion is empty!")
        if not any(isinstance(s, AddOutput) for s in self.statements):
            raise DefinitionError(
                f"{self.name} has no output; call fd.add_output inside its `with` block"
            )
        self.specs: list[InputSpec] = input_specs(self.statements)

    def __call__(self, inputs: Sequence[Input], device: str | None = None) -> list[Output]:
        entry = self.last
        if entry is not None and _accepts(entry, inputs):
            flat = cast(list[PlanArgument], list(inputs))
        else:
            flat = flatten_inputs(self.name, self.specs, inputs)
            entry = self.entry(flat, device)
            self.last = replace(entry, guard=guard_of_last_call(flat, self.specs))
        with torch.no_grad():
            return self.collect_outputs(entry, flat, entry.run(list(flat)))

    def collect_outputs(
        self, entry: DefinitionEntry, flat: Sequence[PlanArgument], results: Sequence[object]
    ) -> list[Output]:
        """Write aliased outputs into their inputs, and return the other outputs.

        An output that is also written into an input shares the input's memory.
        """
        outputs: list[Output] = []
        remaining, written = iter(results), entry.lowering.written
        for item, target in entry.lowering.outputs:
            if isinstance(item, tuple):
                outputs.append([next(remaining) for _ in item])  # type: ignore[misc]  # sizes
                continue
            result = next(remaining)
            if target is None:
                if written and isinstance(item, Node) and item.value in written:
                    result = cast(torch.Tensor, flat[written[item.value]]).detach()
                outputs.append(result)  # type: ignore[arg-type]  # what the plan returns
                continue
            buffer = flat[target]
            assert isinstance(buffer, torch.Tensor) and isinstance(result, torch.Tensor)
            buffer.copy_(result)
        return outputs

    # -- entries ---------------------------------------------------------------------------------

    def entry(self, flat: Sequence[PlanArgument], device: str | None = None) -> DefinitionEntry:
        """Return the entry for these inputs; DefinitionError if their sizes do not match."""
        key = self._key(flat, device)
        found = self.entries.get(key)
        entry = found[0] if found else self._compile(flat, key)
        if not found:
            # compilation may have made more sizes static, which are part of the key
            self.entries.add(self._key(flat, device), entry)
        if entry.lowering.equalities or entry.lowering.minima:
            _check_sizes(entry, flat)
        return entry

    def entry_for_default_sizes(self) -> DefinitionEntry:
        """Return the entry for row-major inputs of DEFAULT_SIZE, before any call."""
        flat: list[PlanArgument] = []
        low, _ = lower_statements(Lowering(), self.statements)
        for item in low.arguments:
            if isinstance(item, Node):
                sizes = [size_hint(e, DEFAULT_SIZE) for e in item.shape]
                flat.append(torch.empty(sizes, dtype=item.dtype.torch))
            else:
                flat.append(DEFAULT_SIZE)
        return self.entry(flat)

    def _key(self, flat: Sequence[PlanArgument], device: str | None) -> EntryKey:
        """Return the key of an entry: devices, layouts, static sizes."""
        parts: list[object] = [device]
        for x in flat:
            if not isinstance(x, torch.Tensor):
                continue
            parts += (x.device, stride_pattern(x))
        parts.append(tuple(self._static_sizes(flat).items()))
        return tuple(parts)

    def _static_sizes(self, flat: Sequence[PlanArgument]) -> dict[str, int]:
        """Return the sizes of these inputs that are constants of their entry."""
        zeros = {s: 0 for s, x in self.zero_specialized.items() if argument_size(x, flat) == 0}
        return zeros | {s: argument_size(x, flat) for s, x in self.specialized.items()}

    def _compile(self, flat: Sequence[PlanArgument], key: EntryKey) -> DefinitionEntry:
        layouts = tuple(stride_pattern(x) if isinstance(x, torch.Tensor) else None for x in flat)
        devices = [str(x.device) for x in flat if isinstance(x, torch.Tensor)]
        default = str(key[0] or next(iter(devices), HOST))
        device = next((d for d in devices if not is_host(d)), default)
        if not is_supported(torch.device(device)):
            raise UnsupportedError(f"{self.name}: tofuse generates no kernels for {device}")
        while True:
            fixed = self._static_sizes(flat)
            low, _ = lower_statements(Lowering(fixed, layouts, device), self.statements)
            self.specialized |= low.specialized
            self.zero_specialized |= low.zero_specialized
            if self._static_sizes(flat) == fixed:
                return self._build(low)

    def _build(self, low: Lowering) -> DefinitionEntry:
        captured = captured_graph(low, self.name)
        config = self.config
        compiled = compile_captured(captured, self.name, make_context(config), config.fuel)
        checked = [d for d, _, _ in low.minima]
        for equality in low.equalities:
            checked += (symbol(equality.symbol), equality.size)
        (report,) = compiled.findings.reports
        sources = low.sources_of(checked)
        arguments = captured, sources, low, report
        return DefinitionEntry(Kind.SPECIALIZED, never, compiled.run, WHY, *arguments)


def _accepts(entry: DefinitionEntry, inputs: Sequence[Input]) -> bool:
    """Whether dtypes, devices, sizes and strides are those of the last call: a fast path."""
    try:
        return entry.guard(*inputs)
    except (TypeError, RuntimeError):  # another number of inputs, or not all are tensors
        return False


def _check_sizes(entry: DefinitionEntry, flat: Sequence[PlanArgument]) -> None:
    """Raise DefinitionError if sizes differ that must be equal, or if a number is too small."""
    env = bind_symbols(entry.symbol_sources, flat)
    for equality in entry.lowering.equalities:
        found, expected = env[equality.symbol], evaluate(equality.size, env)
        if found != expected:
            fact = _describe_size(entry.symbol_sources[equality.symbol], found)
            op, _, reason = equality.reason.partition(": ")
            raise DefinitionError(f"{op}: {fact}, not {expected}; {reason}")
    for number, least, message in entry.lowering.minima:
        if evaluate(number, env) < least:
            raise DefinitionError(message)


def _describe_size(source: SizeSource, size: int) -> str:
    """Return a sentence that says which size it is, and its value in this call."""
    match source:
        case ArgumentSize("size", argument, dim):
            return f"input {argument} has {size} elements at dimension {dim}"
        case ArgumentSize("argument", argument):
            return f"input {argument} is {size}"
    return f"a size computed from the inputs is {size}"


def captured_graph(low: Lowering, name: str) -> CapturedGraph:
    """Return the graph of a lowered definition, with the mapping of arguments and results."""
    items: list[Item] = []
    for output, _ in low.outputs:
        items += output if isinstance(output, tuple) else [output]
    results = tuple(_result(low, item) for item in items)
    arguments = tuple(_result(low, item) for item in low.arguments)
    constants = tuple((node.value, tensor) for node, tensor in low.constants)
    inputs = [a for a in arguments if isinstance(a, Value)] + [v for v, _ in constants]
    values = tuple(r if isinstance(r, Value) else None for r in results)
    graph = Graph(tuple(inputs), tuple(low.builder.ops), values, name)
    return CapturedGraph(graph, arguments, results, constants, dict(low.symbols))


def _result(low: Lowering, item: Item) -> Value | Dim:
    if isinstance(item, Node):
        return item.value
    if isinstance(item.value, (int, SymDim)) and item.dtype.is_int:
        return item.value
    return low.value_of(item, item.dtype)
