"""Inspect a compiled definition: its segments, and its outputs against a reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tofuse.errors import VerifyError
from tofuse.frontends.execute_definition import DefinitionExecutor, Output
from tofuse.frontends.inputs import Input, flatten_inputs
from tofuse.frontends.lowering import Node
from tofuse.ir.call_arguments import CallArguments
from tofuse.ir.dims import Dim, evaluate, product
from tofuse.ir.graph import Op, Value
from tofuse.ops.reference import bind_symbols, run_graph
from tofuse.ops.table import OPS, Pattern
from tofuse.report.model import GraphReport

# the tolerance, and how the absolute one grows with the square root of the summed elements: a
# half type may have been rounded before it was summed
TOLERANCES = {
    torch.float64: (1e-9, 0.0625),
    torch.float32: (2e-5, 0.0625),
    torch.float8_e5m2: (0.25, 0.0),
    torch.float8_e4m3fn: (0.125, 0.0),
    torch.float16: (2e-3, 1.0),
    torch.bfloat16: (2e-2, 1.0),
    torch.complex64: (2e-5, 0.0625),
    torch.complex128: (1e-9, 0.0625),
}


@dataclass(frozen=True)
class Segment:
    """Ops that run as one kernel or one library call.

    `cuts` gives for each edge from an earlier segment the reason why it was not fused.
    """

    name: str
    ops: tuple[str, ...]
    kernel: bool
    cuts: tuple[str, ...]

    def __str__(self) -> str:
        kind = "kernel" if self.kernel else "call"
        return "\n    ".join([f"{kind} {self.name}: {' '.join(self.ops)}", *self.cuts])


def segments_of(report: GraphReport) -> list[Segment]:
    """Return the regions of a compiled definition in execution order."""
    cuts: dict[str, list[str]] = {}
    for verdict in report.verdicts:
        if not verdict.fused:
            cuts.setdefault(verdict.consumer, []).append(f"{verdict.producer}: {verdict.rule}")
    found = []
    for region in report.regions:
        reasons = [c for value in region.values for c in cuts.get(value, ())]
        kernel = region.kernel is not None
        found.append(Segment(region.name, region.ops, kernel, tuple(dict.fromkeys(reasons))))
    return found


def evaluate_reference(executor: DefinitionExecutor, inputs: Sequence[Input]) -> list[Output]:
    """Return the outputs with every op evaluated by itself through PyTorch."""
    arguments = flatten_inputs(executor.name, executor.specs, inputs)
    flat = [x.clone() if isinstance(x, torch.Tensor) else x for x in arguments]
    variant = executor.variant(flat)
    captured = variant.captured
    sizes = bind_symbols(captured.symbols, flat)
    paired = zip(captured.arguments, flat, strict=True)
    given = {v: t for v, t in paired if isinstance(v, Value) and isinstance(t, torch.Tensor)}
    with torch.no_grad():
        env = run_graph(captured.graph, given | dict(captured.constants), sizes)

    def result(r: Value | Dim | None) -> torch.Tensor | int:
        return env[r] if isinstance(r, Value) else evaluate(r or 0, sizes)

    return executor.collect_outputs(variant, flat, [result(r) for r in captured.results])


def reduction_lengths(executor: DefinitionExecutor, inputs: Sequence[Input]) -> list[int]:
    """Return for each output how many elements were summed for one of its elements.

    Lengths of reductions that follow one another are multiplied.
    """
    flat = flatten_inputs(executor.name, executor.specs, inputs)
    variant = executor.variant(flat)
    sizes = bind_symbols(variant.captured.symbols, flat)
    lengths: dict[Value, int] = {}
    for op in variant.captured.graph.ops:
        length = max((lengths.get(v, 1) for v in op.inputs), default=1)
        length *= max(1, evaluate(_reduction_length(op), sizes))
        lengths.update(dict.fromkeys(op.results, length))
    returned = [item for item, target in variant.lowering.outputs if target is None]
    return [lengths.get(x.value, 1) if isinstance(x, Node) else 1 for x in returned]


def _reduction_length(op: Op) -> Dim:
    """Return the number of elements that an op sums for one element of its result."""
    first = op.inputs[0].shape if op.inputs else ()
    if OPS[op.kind].pattern is Pattern.REDUCE:
        dims = op.attr("dims")
        return product(e for d, e in enumerate(first) if isinstance(dims, tuple) and d in dims)
    name = str(op.attr("target")).split(".")[1] if op.kind == "opaque" else ""
    if name in ("mm", "bmm", "mv", "matmul", "linear"):
        return first[-1]
    if name in ("cumsum", "cumprod") and first:
        arguments = op.attr("args")
        assert isinstance(arguments, CallArguments)
        axis = arguments.positional[1]
        assert isinstance(axis, int)
        return first[axis]
    return 1


def verify_outputs(
    name: str, outputs: Sequence[Output], expected: Sequence[object], lengths: Sequence[int]
) -> None:
    """Raise VerifyError if an output differs from the expected one.

    `lengths` are those of `reduction_lengths`.
    """
    if len(outputs) != len(expected):
        raise VerifyError(f"{name} has {len(outputs)} outputs, the reference has {len(expected)}")
    for k, (output, reference, length) in enumerate(zip(outputs, expected, lengths, strict=True)):
        if not isinstance(output, torch.Tensor) or not isinstance(reference, torch.Tensor):
            if output != reference:
                raise VerifyError(f"{name}: output {k} is {output}, the reference is {reference}")
            continue
        if output.shape != reference.shape:
            raise VerifyError(
                f"{name}: output {k} has shape {tuple(output.shape)}, "
                f"the reference has {tuple(reference.shape)}"
            )
        tolerance, growth = TOLERANCES.get(output.dtype, (0.0, 0.0))
        absolute = tolerance * (1.0 + growth * math.sqrt(length))
        a, b = (_comparable(t) for t in (output, reference))
        if not torch.allclose(a, b, rtol=tolerance, atol=absolute, equal_nan=True):
            worst = float((a - b).abs().max())
            raise VerifyError(f"{name}: output {k} differs from the reference by up to {worst:.3g}")


def _comparable(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor in double precision; pairs of fp4 numbers as bytes."""
    if x.dtype is torch.float4_e2m1fn_x2:
        x = x.view(torch.uint8)
    return x.to(torch.complex128 if x.is_complex() else torch.float64)
