"""Runs one model compiled and in eager: training, an optimiser step, generation."""

import copy
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

import torch
from torch import Tensor, nn
from transformers.generation.utils import GenerateDecoderOnlyOutput

from suites.zoo.accuracy import error_ratios, worst_median
from suites.zoo.example import Example, Inputs, float64_copy, in_float64, training_step
from tofuse.capture.dynamo.graph_breaks import record_graph_breaks
from tofuse.config import make_config
from tofuse.driver.compile import compile_reporting
from tofuse.report.model import Report

NEW_TOKENS = 10
MAX_ERROR_RATIO = 2.0
MORE_DRAWS = 14  # sets of weights for a model that exceeds the ratio with its own
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

    def note_ratios(self, part: str, draws: Sequence[Mapping[str, float]]) -> None:
        """Note the worst error ratio of a part, as a fault if it is too large."""
        ratio, where = worst_median(draws)
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
    """Compare a training step; if an error is too large, with other weights too.

    Which side of a ReLU's kink a value falls on changes gradients by orders of magnitude: in some
    networks eager's own error changes 1000-fold when each input is rounded differently. The median
    over several weights does not depend on such an accident.
    """
    models = (compiled, eager, exact)
    buffers = [b.clone() for b in eager.buffers()]
    weights = [p.detach().clone() for p in eager.parameters()]
    draws = [_training_ratios(inputs, models, findings.faults)]
    worst = max(worst_median([ratios])[0] for ratios in draws[0].values())
    for seed in range(MORE_DRAWS if worst > MAX_ERROR_RATIO else 0):
        generator = torch.Generator().manual_seed(seed)
        varied = [w * (1 + 0.1 * torch.randn(w.shape, generator=generator)) for w in weights]
        for model in models:
            _assign(model.parameters(), varied)
            _assign(model.buffers(), buffers)
        draws.append(_training_ratios(inputs, models, findings.faults))
    for part in draws[0]:
        findings.note_ratios(part, [draw[part] for draw in draws])


def _training_ratios(
    inputs: Inputs, models: Sequence[nn.Module], faults: list[str]
) -> dict[str, dict[str, float]]:
    """Return the error ratios of a step of compiled, eager and exact models, by part."""
    steps = [training_step(m, in_float64(inputs) if m is models[2] else inputs) for m in models]
    buffers = [{k: b for k, b in m.named_buffers() if b.is_floating_point()} for m in models]
    parts = {
        "outputs": [step.outputs for step in steps],
        "gradients": [step.gradients for step in steps],
        "buffers": buffers,
    }
    for part, (_, _, exact) in parts.items():
        if unusable := [name for name, x in exact.items() if x.isnan().any()]:
            faults.append(f"{part}: {unusable[0]} is nan in float64")
    return {part: error_ratios(*tensors) for part, tensors in parts.items()}


@torch.no_grad()
def _assign(targets: Iterable[Tensor], values: Iterable[Tensor]) -> None:
    for target, value in zip(targets, values, strict=True):
        target.copy_(value)


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
    findings.note_ratios("optimiser", [error_ratios(*named)])


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
    findings.note_ratios("generation", [error_ratios(*({"logits": x} for x in found))])


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
