"""Runs one model compiled and in eager: training, an optimiser step, generation."""

import copy
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol, cast

import torch
from torch import Tensor, nn
from transformers.generation.utils import GenerateDecoderOnlyOutput

from suites.zoo.accuracy import worst_error_ratio
from suites.zoo.example import Example, Inputs, float64_copy, in_float64, training_step
from tofuse.capture.dynamo.graph_breaks import record_graph_breaks
from tofuse.config import make_config
from tofuse.driver.compile import compile_reporting
from tofuse.report.model import Report

NEW_TOKENS = 10
MAX_ERROR_RATIO = 2.0
BETAS = (0.5, 0.75)  # exact in float32, in which a compiled step computes their powers


class Generates(Protocol):
    """A model that generates text."""

    def generate(self, **arguments: object) -> GenerateDecoderOnlyOutput: ...


@dataclass
class Findings:
    """What the checks of a model found: error ratios by part, and faults in words."""

    ratios: dict[str, float] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    breaks: list[str] = field(default_factory=list)
    fallbacks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    graphs: int = 0

    def compare(
        self,
        part: str,
        ours: dict[str, Tensor],
        eager: dict[str, Tensor],
        exact: dict[str, Tensor],
    ) -> None:
        """Note the worst error ratio of a part, as a fault if it is too large or says nothing."""
        if unusable := [name for name, x in exact.items() if x.isnan().any()]:
            self.faults.append(f"{part}: {unusable[0]} is nan in float64")
        ratio, where = worst_error_ratio(ours, eager, exact)
        self.ratios[part] = round(ratio, 2)
        if ratio > MAX_ERROR_RATIO:
            self.faults.append(f"{part}: {ratio:.3g} times eager's error in {where}")


def check_model(example: Example) -> Findings:
    """Compare the compiled model with eager in float32 and float64."""
    findings = Findings()
    torch._dynamo.reset()
    eager = example.model
    exact = float64_copy(eager)
    ours = copy.deepcopy(eager)
    compiled, report = compile_reporting(ours, make_config({}))
    assert isinstance(compiled, nn.Module)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with record_graph_breaks() as findings.breaks:
            _check_training(findings, example.inputs, compiled, eager, exact)
            if example.prompt:
                _check_generation(findings, example.prompt, compiled, eager, exact)
        _check_optimiser(findings, ours)
    messages = {str(w.message) for w in caught}
    findings.faults += sorted(m for m in messages if "tofuse" in m or "kernel" in m)
    _describe(findings, report)
    return findings


def _check_training(
    findings: Findings, inputs: Inputs, compiled: nn.Module, eager: nn.Module, exact: nn.Module
) -> None:
    reference = training_step(exact, in_float64(inputs))
    expected = training_step(eager, inputs)
    actual = training_step(compiled, inputs)
    findings.compare("outputs", actual.outputs, expected.outputs, reference.outputs)
    findings.compare("gradients", actual.gradients, expected.gradients, reference.gradients)
    buffers = [dict(m.named_buffers()) for m in (compiled, eager, exact)]
    floats = [{k: b for k, b in bs.items() if b.is_floating_point()} for bs in buffers]
    findings.compare("buffers", *floats)


def _check_optimiser(findings: Findings, model: nn.Module) -> None:
    """Compare a compiled step of AdamW with eager's on the same gradients."""
    parameters = [p for p in model.parameters() if p.grad is not None]
    copies = [copy.deepcopy(parameters), [_float64(p) for p in parameters]]
    for copied, p in zip(copies[0], parameters, strict=True):
        copied.grad = p.grad
    optimisers = [torch.optim.AdamW(ps, lr=0.01, betas=BETAS) for ps in (parameters, *copies)]
    step = compile_reporting(lambda: optimisers[0].step(), make_config({}))[0]
    step()
    for optimiser in optimisers[1:]:
        optimiser.step()
    named = [{str(k): p.detach() for k, p in enumerate(ps)} for ps in (parameters, *copies)]
    findings.compare("optimiser", *named)


def _float64(parameter: nn.Parameter) -> nn.Parameter:
    result = nn.Parameter(parameter.detach().double())
    assert parameter.grad is not None
    result.grad = parameter.grad.double()
    return result


def _check_generation(
    findings: Findings, prompt: Inputs, compiled: nn.Module, eager: nn.Module, exact: nn.Module
) -> None:
    """Compare the logits of ten greedy tokens."""
    prompts = (prompt, prompt, in_float64(prompt))
    models = (compiled, eager, exact)
    found = [_generate(m.eval(), p) for m, p in zip(models, prompts, strict=True)]
    findings.compare("generation", *({"logits": x} for x in found))


def _generate(model: nn.Module, prompt: Inputs) -> Tensor:
    result = cast(Generates, model).generate(
        **prompt,
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
        do_sample=False,
        num_beams=1,
        output_logits=True,
        return_dict_in_generate=True,
    )
    assert result.logits is not None
    return torch.stack(tuple(result.logits))


def _describe(findings: Findings, report: Report) -> None:
    findings.graphs = len(report.graphs)
    if not findings.graphs:
        findings.faults.append("no graph was compiled")
    findings.notes = list(dict.fromkeys(report.notes))
    calls = Counter(f"{c.name}: {c.reason}" for c in report.library_calls)
    findings.fallbacks = [f"{call} x{n}" for call, n in calls.most_common()]
