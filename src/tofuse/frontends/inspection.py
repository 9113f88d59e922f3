"""Inspect a compiled definition: its segments, and its outputs against a reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from tofuse.analysis.alias import is_view
from tofuse.errors import VerifyError
from tofuse.frontends.execute_definition import DefinitionExecutor, Output
from tofuse.frontends.inputs import Input, flatten_inputs
from tofuse.ir.dims import Dim, evaluate
from tofuse.ir.graph import Graph, Value
from tofuse.ops.reference import bind_symbols, run_graph
from tofuse.report.model import GraphReport

TOLERANCES = {
    torch.float64: 1e-9,
    torch.float32: 2e-5,
    torch.float8_e5m2: 0.25,
    torch.float8_e4m3fn: 0.125,
    torch.float16: 2e-3,
    torch.bfloat16: 2e-2,
    torch.complex64: 2e-5,
    torch.complex128: 1e-9,
}
ROUNDED = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.complex128),
)
# how often the outputs are computed with other roundings, and how many times the root mean square
# of their differences is allowed
RUNS, MARGIN = 4, 8.0


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


def evaluate_reference(
    executor: DefinitionExecutor, inputs: Sequence[Input], seed: int | None = None
) -> list[Output]:
    """Return the outputs with every op evaluated by itself through PyTorch.

    With a seed, a random error of the size of a rounding error is added to each computed value.
    """
    arguments = flatten_inputs(executor.name, executor.specs, inputs)
    flat = [x.clone() if isinstance(x, torch.Tensor) else x for x in arguments]
    entry = executor.entry(flat)
    captured = entry.captured
    sizes = bind_symbols(captured.symbols, flat)
    paired = zip(captured.arguments, flat, strict=True)
    given = {v: t for v, t in paired if isinstance(v, Value) and isinstance(t, torch.Tensor)}
    given |= dict(captured.constants)
    with torch.no_grad():
        if seed is None:
            env = run_graph(captured.graph, given, sizes)
        else:
            env = _run_perturbed(captured.graph, given, sizes, seed)

    def result(r: Value | Dim | None) -> torch.Tensor | int:
        return env[r] if isinstance(r, Value) else evaluate(r or 0, sizes)

    return executor.collect_outputs(entry, flat, [result(r) for r in captured.results])


def rounding_errors(executor: DefinitionExecutor, inputs: Sequence[Input]) -> list[float]:
    """Return for each output by how much it may differ because of rounding.

    It is measured: the outputs are computed again with other rounding errors.
    """
    runs = []
    for seed in (None, *range(RUNS)):
        with torch.random.fork_rng(devices=[]):  # each run draws the same random numbers
            runs.append(evaluate_reference(executor, inputs, seed))
    exact, *disturbed = runs
    return [_root_mean_square(e, others) for e, *others in zip(exact, *disturbed, strict=True)]


def _root_mean_square(exact: Output, others: Sequence[Output]) -> float:
    """Return the root of the mean square of the finite differences from an output."""
    if not isinstance(exact, torch.Tensor) or exact.dtype not in ROUNDED:
        return 0.0
    tensors = [t for t in others if isinstance(t, torch.Tensor)]
    differences = torch.stack([(_comparable(t) - _comparable(exact)).abs() for t in tensors])
    finite = differences[differences.isfinite()]
    return float(finite.square().mean().sqrt()) if finite.numel() else 0.0


def _run_perturbed(
    graph: Graph, inputs: Mapping[Value, torch.Tensor], sizes: Mapping[str, int], seed: int
) -> dict[Value, torch.Tensor]:
    """Return the value of every result, with an error in each computed one and each summed one."""
    generator = torch.Generator().manual_seed(seed)
    env = dict(inputs)
    for op in graph.ops:
        operands = {v: env[v] for v in op.inputs}
        if op.kind in ("sum", "prod", "opaque"):
            operands = {v: _perturbed(t, generator) for v, t in operands.items()}
        results = run_graph(Graph(op.inputs, (op,), op.results), operands, sizes)
        for v in op.results:
            env[v] = results[v] if is_view(op) else _perturbed(results[v], generator)
    return env


def _perturbed(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return a tensor with a relative error of up to half an epsilon in each number."""
    if x.dtype not in ROUNDED:
        return x
    errors = (torch.rand(x.shape, generator=generator, dtype=torch.float64) - 0.5).to(x.device)
    wide = _comparable(x)
    return torch.empty_like(x).copy_(wide + wide * (torch.finfo(x.dtype).eps * errors))


def verify_outputs(
    name: str, outputs: Sequence[Output], expected: Sequence[object], errors: Sequence[float]
) -> None:
    """Raise VerifyError if an output differs from the expected one.

    `errors` are those of `rounding_errors`.
    """
    if len(outputs) != len(expected):
        raise VerifyError(f"{name} has {len(outputs)} outputs, the reference has {len(expected)}")
    for k, (output, reference, error) in enumerate(zip(outputs, expected, errors, strict=True)):
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
        a, b = (_comparable(t) for t in (output, reference))
        finite = b[b.isfinite()].abs()
        largest = float(finite.max()) if finite.numel() else 0.0
        absolute = tolerance * min(1.0, largest) + MARGIN * error
        if not torch.allclose(a, b, rtol=tolerance, atol=absolute, equal_nan=True):
            worst = float((a - b).abs().max())
            raise VerifyError(f"{name}: output {k} differs from the reference by up to {worst:.3g}")


def _comparable(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor in double precision; pairs of fp4 numbers as bytes."""
    if x.dtype is torch.float4_e2m1fn_x2:
        x = x.view(torch.uint8)
    return x.to(torch.complex128 if x.is_complex() else torch.float64)
