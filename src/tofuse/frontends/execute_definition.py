"""Run a definition: compile a variant per input layout, check sizes, write aliased outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Union, cast

import torch

from tofuse.capture.fx.devices import SUPPORTED_DEVICES
from tofuse.capture.lower.convert import CapturedGraph
from tofuse.config import Config
from tofuse.driver.context import make_context
from tofuse.driver.pipeline import compile_captured
from tofuse.errors import DefinitionError, UnsupportedError
from tofuse.frontends.definition import (
    AddOutput,
    DefineTensor,
    Environment,
    OpCall,
    Statement,
    lower_statement,
)
from tofuse.frontends.input_layouts import StridePattern, stride_pattern
from tofuse.frontends.inputs import Input, InputSpec, PlanArgument, flatten_inputs, input_specs
from tofuse.frontends.lowering import Item, Lowering, Node
from tofuse.ir.dims import Dim, SymDim, evaluate, symbol, symbols_of
from tofuse.ir.graph import Graph, Value
from tofuse.ir.size_expression import ArgumentSize, SizeSource
from tofuse.ops.reference import argument_size, bind_symbols
from tofuse.report.model import GraphReport
from tofuse.runtime.execute import CompiledPlan
from tofuse.torch_internals.dispatch import TensorGuards

Output = Union[torch.Tensor, int, list[int]]  # noqa: UP007
VariantKey = tuple[object, ...]
DEFAULT_SIZE = 64  # for symbolic sizes if a definition is compiled before its first run


@dataclass(frozen=True)
class SizeCheck:
    """Dimension `dim` of argument `argument` must be `size`."""

    argument: int
    dim: int
    size: Dim


@dataclass(frozen=True)
class Variant:
    """A definition compiled for one device, one layout of the inputs, and some static sizes."""

    run: CompiledPlan
    captured: CapturedGraph
    checks: tuple[SizeCheck, ...]
    symbol_sources: Mapping[str, SizeSource]  # of the symbols in the checks
    lowering: Lowering
    report: GraphReport


@dataclass(frozen=True)
class LastCallGuard:
    """A fast path: a call like the last one, with tensors only, needs no other check."""

    guard: TensorGuards
    variant: Variant

    def matches(self, inputs: Sequence[Input]) -> bool:
        """Whether dtypes, devices, sizes and strides are those of the last call."""
        try:
            return self.guard.check(*inputs)
        except (TypeError, RuntimeError):  # another number of inputs, or not all are tensors
            return False


def guard_last_call(
    variant: Variant, flat: Sequence[PlanArgument], specs: Sequence[InputSpec]
) -> LastCallGuard | None:
    """Return a guard on this call; None unless all arguments are distinct tensors."""
    tensors = [x for x in flat if isinstance(x, torch.Tensor)]
    if not tensors or len({*map(id, tensors)}) != len(flat):
        return None
    if not all(isinstance(spec, DefineTensor) for spec in specs):
        return None
    guard = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
    return LastCallGuard(guard, variant)


@dataclass
class DefinitionExecutor:
    """All variants of one definition."""

    name: str
    statements: Sequence[Statement]
    config: Config
    specialized: dict[str, ArgumentSize] = field(default_factory=dict)
    variants: dict[VariantKey, Variant] = field(default_factory=dict)
    last_variant: Variant | None = None
    last_call: LastCallGuard | None = None

    def __post_init__(self) -> None:
        if not any(isinstance(s, (OpCall, DefineTensor)) for s in self.statements):
            raise NotImplementedError("Fusion is empty!")
        if not any(isinstance(s, AddOutput) for s in self.statements):
            raise DefinitionError(
                f"{self.name} has no output; call fd.add_output inside its `with` block"
            )
        self.specs = input_specs(self.statements)

    def __call__(self, inputs: Sequence[Input], device: str | None = None) -> list[Output]:
        if self.last_call is not None and self.last_call.matches(inputs):
            variant = self.last_variant = self.last_call.variant
            flat = cast(list[PlanArgument], list(inputs))
        else:
            flat = flatten_inputs(self.name, self.specs, inputs)
            variant = self.last_variant = self.variant(flat, device)
            self.last_call = guard_last_call(variant, flat, self.specs)
        with torch.no_grad():
            return self.collect_outputs(variant, flat, variant.run(list(flat)))

    def collect_outputs(
        self, variant: Variant, flat: Sequence[PlanArgument], results: Sequence[object]
    ) -> list[Output]:
        """Write aliased outputs into their inputs, and return the other outputs."""
        outputs: list[Output] = []
        remaining = iter(results)
        for item, target in variant.lowering.outputs:
            if isinstance(item, tuple):
                outputs.append([next(remaining) for _ in item])  # type: ignore[misc]  # sizes
                continue
            result = next(remaining)
            if target is None:
                outputs.append(result)  # type: ignore[arg-type]  # what the plan returns
                continue
            buffer = flat[target]
            assert isinstance(buffer, torch.Tensor) and isinstance(result, torch.Tensor)
            buffer.copy_(result)
        return outputs

    # -- variants --------------------------------------------------------------------------------

    def variant(self, flat: Sequence[PlanArgument], device: str | None = None) -> Variant:
        """Return the variant for these inputs; DefinitionError if their sizes do not match."""
        key = self._key(flat, device)
        variant = self.variants.get(key)
        if variant is None:
            variant = self._compile(flat, key)
            # compilation may have made more sizes static, which are part of the key
            self.variants[self._key(flat, device)] = variant
        if variant.checks or variant.lowering.nonzero_sizes:
            self._check(variant, flat)
        return variant

    def _check(self, variant: Variant, flat: Sequence[PlanArgument]) -> None:
        """Raise DefinitionError if the sizes are not those that the program needs."""
        env = bind_symbols(variant.symbol_sources, flat)
        for check in variant.checks:
            tensor = flat[check.argument]
            assert isinstance(tensor, torch.Tensor)
            expected = evaluate(check.size, env)
            if tensor.shape[check.dim] != expected:
                raise DefinitionError(self._mismatch(variant.lowering, check, tensor, expected))
        for count, message in variant.lowering.nonzero_sizes:
            if evaluate(count, env) == 0:
                raise DefinitionError(message)

    def variant_for_default_sizes(self) -> Variant:
        """Return the variant for row-major inputs of DEFAULT_SIZE, before any call."""
        flat: list[PlanArgument] = []
        low = self.lower({}, (), "cpu")
        for item in low.arguments:
            if isinstance(item, Node):
                sizes = [DEFAULT_SIZE if isinstance(e, SymDim) else e for e in item.shape]
                flat.append(torch.empty(sizes, dtype=item.dtype.torch))
            else:
                flat.append(DEFAULT_SIZE)
        return self.variant(flat)

    def lower(self, sizes: Mapping[str, int], layouts: StridePatterns, device: str) -> Lowering:
        """Lower the definition to a graph, with the given static sizes."""
        low, env = Lowering(sizes, layouts, device), Environment()
        for statement in self.statements:
            lower_statement(low, statement, env)
        return low

    def _key(self, flat: Sequence[PlanArgument], device: str | None) -> VariantKey:
        """Return the key of a variant: devices, layouts, static sizes."""
        parts: list[object] = [device]
        for x in flat:
            if not isinstance(x, torch.Tensor):
                continue
            parts += (x.device, stride_pattern(x))
        parts.append(tuple(argument_size(source, flat) for source in self.specialized.values()))
        return tuple(parts)

    def _compile(self, flat: Sequence[PlanArgument], key: VariantKey) -> Variant:
        layouts = tuple(stride_pattern(x) if isinstance(x, torch.Tensor) else None for x in flat)
        devices = [str(x.device) for x in flat if isinstance(x, torch.Tensor)]
        default = str(key[0] or next(iter(devices), "cpu"))
        device = next((d for d in devices if d != "cpu"), default)  # 0-d inputs may be on the CPU
        if torch.device(device).type not in SUPPORTED_DEVICES:
            raise UnsupportedError(f"{self.name}: tofuse generates no kernels for {device}")
        while True:
            fixed = {s: argument_size(source, flat) for s, source in self.specialized.items()}
            low = self.lower(fixed, layouts, device)
            if low.specialized.keys() <= fixed.keys():
                return self._build(low, fixed)
            self.specialized |= low.specialized

    def _build(self, low: Lowering, fixed: Mapping[str, int]) -> Variant:
        captured = captured_graph(low, self.name)
        reports: list[GraphReport] = []
        context = make_context(self.config, reports.append)
        run = compile_captured(captured, self.name, context)[0]
        checks = tuple(_size_checks(low, fixed))
        sizes = (*(c.size for c in checks), *(d for d, _ in low.nonzero_sizes))
        return Variant(run, captured, checks, low.sources_of(sizes), low, reports[-1])

    def _mismatch(
        self, low: Lowering, check: SizeCheck, tensor: torch.Tensor, expected: int
    ) -> str:
        """Return the message for a wrong size, with the op that needs it and the user's line."""
        own_symbol = f"i{check.argument}d{check.dim}"
        fact = (
            f"input {check.argument} has {tensor.shape[check.dim]} elements at dimension "
            f"{check.dim}, not {expected}"
        )
        for guard in low.size_guards:
            if {own_symbol, *symbols_of(check.size)} & {*symbols_of(guard.a), *symbols_of(guard.b)}:
                op, _, rest = guard.reason.partition(": ")
                return f"{op}: {fact}; {rest}"
        return f"{self.name}: {fact}"


StridePatterns = Sequence[Union[StridePattern, None]]  # noqa: UP007


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
        return item.value if isinstance(item.value, int) else low.resolve_dim(item.value)
    return low.value_of(item, item.dtype)


def _size_checks(low: Lowering, fixed: Mapping[str, int]) -> list[SizeCheck]:
    """Return the sizes of inputs that neither their own symbols nor the key determine."""
    return [
        SizeCheck(k, d, extent)
        for k, item in enumerate(low.arguments)
        if isinstance(item, Node)
        for d, extent in enumerate(item.shape)
        if (own := f"i{k}d{d}") in low.symbols and extent not in (symbol(own), fixed.get(own))
    ]
