"""Running a definition: compile once for each kind of inputs, check sizes, write aliases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Union, cast

import torch
from torch._C._dynamo.guards import TensorGuards

from tofuse.capture.fx.devices import DEVICES
from tofuse.capture.fx.sizes import Source
from tofuse.capture.lower.convert import Captured
from tofuse.config import Config
from tofuse.driver.pipeline import compile_captured
from tofuse.errors import DefinitionError, UnsupportedError
from tofuse.frontends.input_layouts import Layout, layout_of
from tofuse.frontends.inputs import Flat, Input, Spec, flatten, specs
from tofuse.frontends.lowering import Item, Lowering, Node
from tofuse.frontends.program import AddOutput, Call, DefineTensor, Environment, Statement, lower
from tofuse.ir.dims import Dim, SymDim, evaluate, symbol, symbols_of
from tofuse.ir.graph import Graph, Value
from tofuse.report.model import GraphReport
from tofuse.runtime.execute import CompiledPlan

Output = Union[torch.Tensor, int, list[int]]  # noqa: UP007
Key = tuple[object, ...]
DENSE = 64  # what a size counts as where a definition is compiled before it ever ran


@dataclass(frozen=True)
class Equal:
    """Dimension `dim` of argument `place` must be `size`."""

    place: int
    dim: int
    size: Dim


@dataclass(frozen=True)
class Variant:
    """A definition compiled for one kind of inputs: how they lie, and any sizes it fixed."""

    run: CompiledPlan
    captured: Captured
    checks: tuple[Equal, ...]
    reads: tuple[tuple[str, Source], ...]  # the symbols that checks need
    low: Lowering
    report: GraphReport


@dataclass(frozen=True)
class Recent:
    """The last call, if it had tensors alone: one like it needs no check but this."""

    guard: TensorGuards
    count: int
    variant: Variant

    def fits(self, inputs: Sequence[Input]) -> bool:
        """Whether dtypes, devices, sizes and strides are those of the last call."""
        if len(inputs) != self.count:
            return False
        try:
            return self.guard.check(*inputs)
        except (TypeError, RuntimeError):  # not all are tensors
            return False


def recent(variant: Variant, flat: Sequence[Flat], wanted: Sequence[Spec]) -> Recent | None:
    """A guard on this call; None where arguments are not distinct tensors."""
    tensors = [x for x in flat if isinstance(x, torch.Tensor)]
    if not tensors or len({*map(id, tensors)}) != len(flat):
        return None
    if not all(isinstance(spec, DefineTensor) for spec in wanted):
        return None
    guard = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
    return Recent(guard, len(tensors), variant)


@dataclass
class Executor:
    """All variants of one definition."""

    name: str
    statements: Sequence[Statement]
    config: Config
    pinned: dict[str, Source] = field(default_factory=dict)
    variants: dict[Key, Variant] = field(default_factory=dict)
    last: Variant | None = None
    recent: Recent | None = None

    def __post_init__(self) -> None:
        if not any(isinstance(s, (Call, DefineTensor)) for s in self.statements):
            raise NotImplementedError("Fusion is empty!")
        if not any(isinstance(s, AddOutput) for s in self.statements):
            raise DefinitionError(
                f"{self.name} has no output; name one with fd.add_output inside its `with`"
            )
        self.specs = specs(self.statements)

    def __call__(self, inputs: Sequence[Input], device: str | None = None) -> list[Output]:
        if self.recent is not None and self.recent.fits(inputs):
            variant = self.last = self.recent.variant
            flat = cast(list[Flat], list(inputs))
        else:
            flat = self.flatten(inputs)
            variant = self.last = self.variant(flat, device)
            self.recent = recent(variant, flat, self.specs)
        with torch.no_grad():
            return self.returned(variant, flat, variant.run(list(flat)))

    def flatten(self, inputs: Sequence[Input]) -> list[Flat]:
        """The arguments of the plan; DefinitionError where one is not as defined."""
        return flatten(self.name, self.specs, inputs)

    def returned(
        self, variant: Variant, flat: Sequence[Flat], results: Sequence[object]
    ) -> list[Output]:
        """Flat results as outputs, after writing those that belong into inputs."""
        found: list[Output] = []
        rest = iter(results)
        for item, target in variant.low.outputs:
            if isinstance(item, tuple):
                found.append([next(rest) for _ in item])  # type: ignore[misc]  # sizes
                continue
            result = next(rest)
            if target is None:
                found.append(result)  # type: ignore[arg-type]  # what the plan returns
                continue
            buffer = flat[target]
            assert isinstance(buffer, torch.Tensor) and isinstance(result, torch.Tensor)
            buffer.copy_(result)
        return found

    # -- variants --------------------------------------------------------------------------------

    def variant(self, flat: Sequence[Flat], device: str | None = None) -> Variant:
        """The compiled program for such inputs; DefinitionError where sizes do not fit."""
        key = self._key(flat, device)
        found = self.variants.get(key)
        if found is None:
            found = self._compile(flat, key)
            self.variants[self._key(flat, device)] = found  # there may be more sizes in it now
        if found.checks or found.low.positive:
            self._check(found, flat)
        return found

    def _check(self, variant: Variant, flat: Sequence[Flat]) -> None:
        """DefinitionError where sizes are not what the program needs."""
        env = {name: read(flat, source) for name, source in variant.reads}
        for check in variant.checks:
            tensor = flat[check.place]
            assert isinstance(tensor, torch.Tensor)
            wanted = evaluate(check.size, env)
            if tensor.shape[check.dim] != wanted:
                raise DefinitionError(self._mismatch(variant.low, check, tensor, wanted))
        for count, message in variant.low.positive:
            if evaluate(count, env) == 0:
                raise DefinitionError(message)

    def dense(self) -> Variant:
        """What is compiled for row-major inputs of sizes that nobody knows yet."""
        flat: list[Flat] = []
        low = self.lower({}, (), "cpu")
        for item in low.arguments:
            if isinstance(item, Node):
                sizes = [DENSE if isinstance(e, SymDim) else e for e in item.shape]
                flat.append(torch.empty(sizes, dtype=item.dtype.torch))
            else:
                flat.append(DENSE)
        return self.variant(flat)

    def lower(self, sizes: Mapping[str, int], layouts: Layouts, device: str) -> Lowering:
        """The definition as a graph, with some sizes fixed."""
        low, env = Lowering(sizes, layouts, device), Environment()
        for statement in self.statements:
            lower(low, statement, env)
        return low

    def _key(self, flat: Sequence[Flat], device: str | None) -> Key:
        """What decides on the variant: device, layouts, fixed sizes."""
        parts: list[object] = [device]
        for x in flat:
            if not isinstance(x, torch.Tensor):
                continue
            parts += (x.device, layout_of(x))
        parts.append(tuple(read(flat, source) for source in self.pinned.values()))
        return tuple(parts)

    def _compile(self, flat: Sequence[Flat], key: Key) -> Variant:
        layouts = tuple(layout_of(x) if isinstance(x, torch.Tensor) else None for x in flat)
        devices = [str(x.device) for x in flat if isinstance(x, torch.Tensor)]
        given = str(key[0] or next(iter(devices), "cpu"))
        device = next((d for d in devices if d != "cpu"), given)  # numbers are the CPU's
        if torch.device(device).type not in DEVICES:
            raise UnsupportedError(f"{self.name}: there are no kernels for {device} yet")
        low = self.lower({}, layouts, device)
        while True:
            self.pinned |= {s: low.symbols[s] for s in low.pinned}
            fixed = {s: read(flat, source) for s, source in self.pinned.items()}
            low = self.lower(fixed, layouts, device)
            if set(low.pinned) <= set(fixed):
                return self._build(low, fixed)

    def _build(self, low: Lowering, fixed: Mapping[str, int]) -> Variant:
        captured = capture(low, self.name)
        reports: list[GraphReport] = []
        run = compile_captured(captured, self.name, self.config, reports.append)
        checks = tuple(_checks(low, fixed))
        names = dict.fromkeys(
            s
            for d in (*(c.size for c in checks), *(d for d, _ in low.positive))
            for s in symbols_of(d)
        )
        reads = tuple((s, low.symbols[s]) for s in names)
        return Variant(run, captured, checks, reads, low, reports[-1])

    def _mismatch(self, low: Lowering, check: Equal, tensor: torch.Tensor, wanted: int) -> str:
        """Which op needs the size, and where the user wrote it."""
        own = f"i{check.place}d{check.dim}"
        fact = (
            f"input {check.place} has {tensor.shape[check.dim]} elements at dimension "
            f"{check.dim}, where {wanted} are needed"
        )
        for guard in low.guards:
            if {own, *symbols_of(check.size)} & {*symbols_of(guard.a), *symbols_of(guard.b)}:
                op, _, rest = guard.reason.partition(": ")
                return f"{op}: {fact}; {rest}"
        return f"{self.name}: {fact}"


Layouts = Sequence[Union[Layout, None]]  # noqa: UP007


def capture(low: Lowering, name: str) -> Captured:
    """The graph of a lowered definition, and how arguments and results map to it."""
    items: list[Item] = []
    for output, _ in low.outputs:
        items += output if isinstance(output, tuple) else [output]
    results = tuple(_result(low, item) for item in items)
    arguments = tuple(_argument(a) for a in low.arguments)
    constants = tuple((node.value, tensor) for node, tensor in low.constants)
    inputs = [a for a in arguments if isinstance(a, Value)] + [v for v, _ in constants]
    values = tuple(r if isinstance(r, Value) else None for r in results)
    graph = Graph(tuple(inputs), tuple(low.build.ops), values, name)
    return Captured(graph, arguments, results, constants, dict(low.symbols))


def _result(low: Lowering, item: Item) -> Value | Dim:
    if isinstance(item, Node):
        return item.value
    if isinstance(item.value, (int, SymDim)) and item.dtype.is_int:
        return item.value if isinstance(item.value, int) else low.known(item.value)
    return low.value_of(item, item.dtype)


def _argument(item: Item) -> Value | Dim:
    if isinstance(item, Node):
        return item.value
    assert isinstance(item.value, (int, SymDim))
    return item.value


def _checks(low: Lowering, fixed: Mapping[str, int]) -> list[Equal]:
    """What sizes the inputs must have, beyond what their own symbols and the key say."""
    found = []
    for k, item in enumerate(low.arguments):
        if isinstance(item, Node):
            for d, extent in enumerate(item.shape):
                own = f"i{k}d{d}"
                if own in low.symbols and extent not in (symbol(own), fixed.get(own)):
                    found.append(Equal(k, d, extent))
    return found


def read(flat: Sequence[Flat], source: Source) -> int:
    """The value of a symbol in a call."""
    kind, place, dim = source
    held = flat[place]
    if isinstance(held, torch.Tensor):
        return held.shape[dim] if kind == "size" else held.stride(dim)
    return held
