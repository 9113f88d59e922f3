"""Inspect a compiled definition: its segments, and its outputs against a reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tofuse.errors import VerifyError
from tofuse.frontends.execute_definition import DefinitionExecutor, Output
from tofuse.frontends.inputs import Input, flatten_inputs
from tofuse.ir.dims import Dim, evaluate
from tofuse.ir.graph import Value
from tofuse.ops.reference import bind_symbols, run_graph
from tofuse.report.model import GraphReport

TOLERANCES = {
    torch.float64: 1e-9,
    torch.float32: 2e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 2e-2,
    torch.complex64: 2e-5,
    torch.complex128: 1e-9,
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


def verify_outputs(name: str, outputs: Sequence[Output], expected: Sequence[object]) -> None:
    """Raise VerifyError if an output differs from the expected one."""
    if len(outputs) != len(expected):
        raise VerifyError(f"{name} has {len(outputs)} outputs, the reference has {len(expected)}")
    for k, (output, reference) in enumerate(zip(outputs, expected, strict=True)):
        if not isinstance(output, torch.Tensor) or not isinstance(reference, torch.Tensor):
            if output != reference:
                raise VerifyError(f"{name}: output {k} is {output}, the reference is {reference}")
            continue
        if output.shape != reference.shape:
            raise VerifyError(
                f"{name}: output {k} has shape {tuple(output.shape)}, "
                f"the reference has {tuple(reference.shape)}"
            )
        tolerance = TOLERANCES.get(output.dtype, 0.0)
        wide = torch.complex128 if output.is_complex() else torch.float64
        a, b = output.to(wide), reference.to(wide)
        if not torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True):
            worst = float((a - b).abs().max())
            raise VerifyError(f"{name}: output {k} differs from the reference by up to {worst:.3g}")
