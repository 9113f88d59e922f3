"""The suite of models: small architectures, error ratios, the document."""

import math

import pytest
import torch
from torch import nn

from suites import models
from suites.harness import Result
from suites.zoo import check_model as check_model_module
from suites.zoo import timm_models, transformers_models
from suites.zoo.accuracy import error_ratios, worst_median
from suites.zoo.check_model import check_model
from suites.zoo.document import document_text
from suites.zoo.example import Example, training_step

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def test_a_hundred_architectures_of_transformers_and_thirty_of_timm():
    assert len(set(transformers_models.MODELS)) == 100
    assert len(timm_models.MODELS) == 30
    for name in transformers_models.MODELS:
        transformers_models.task_of(name)  # this release has it


@pytest.mark.parametrize("name", ["llama", "t5", "swin", "sam"])
def test_rules_make_a_configuration_small(name):
    example = models.build(f"transformers/{name}")
    assert sum(p.numel() for p in example.model.parameters()) < 100_000
    assert bool(example.prompt) == (name in ("llama", "t5"))
    step = training_step(example.model, example.inputs)
    assert all(x.isfinite().all() for x in (*step.outputs.values(), *step.gradients.values()))


def test_an_error_is_measured_in_errors_of_eager():
    torch.manual_seed(0)
    exact = {"a": torch.randn(1000, dtype=torch.float64), "b": torch.zeros(3, dtype=torch.float64)}
    eager = {name: x.float() for name, x in exact.items()}
    assert max(error_ratios(eager, eager, exact).values()) <= 1
    assert error_ratios({**eager, "a": eager["a"] * (1 + 1e-5)}, eager, exact)["a"] > 20
    assert error_ratios({**eager, "b": torch.full((3,), 1e-4)}, eager, exact)["b"] > 10
    assert error_ratios({**eager, "b": torch.full((3,), 1e-6)}, eager, exact)["b"] < 1
    assert error_ratios({"b": eager["b"]}, eager, exact)["a is missing"] == math.inf
    assert max(error_ratios({"a": eager["a"]}, eager, exact).values()) <= 1  # b is zeros
    wrong = {**eager, "a": eager["a"].clone().fill_(torch.nan)}
    assert error_ratios(wrong, eager, exact)["a has other infinities or nan"] == math.inf


def test_the_median_of_draws_counts():
    draws = [{"a": 1.0, "b": 900.0}, {"a": 3.0, "b": 0.5}, {"a": 3.0, "b": 0.5}]
    assert worst_median(draws) == (3.0, "a")
    assert worst_median([*draws, {"c is missing": math.inf}]) == (math.inf, "c is missing")
    assert worst_median([{}]) == (0.0, "")


def test_weights_are_varied_if_an_error_is_too_large(monkeypatch):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x):
            return self.norm(x).exp()

    x = {"x": torch.randn(5, 4)}
    monkeypatch.setattr(check_model_module, "MAX_ERROR_RATIO", 0.0)
    found = check_model(Example(Model(), x))
    assert {fault.split(":")[0] for fault in found.faults} >= {"outputs", "gradients"}
    assert max(found.ratios.values()) < 2


def test_a_model_passes_and_its_graph_breaks_are_found():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            y = self.linear(x).tanh()
            torch._dynamo.graph_break()
            return y.cumsum(1) * 2

    found = check_model(Example(Model(), {"x": torch.randn(3, 4)}))
    assert found.faults == [] and len(found.breaks) == 1
    assert set(found.ratios) == {"outputs", "gradients", "buffers", "optimiser"}


def test_the_document_has_the_conclusion_first():
    data: dict[str, str | int | float | list[str]] = {
        "outputs": 0.5,
        "gradients": 1.25,
        "breaks": ["graph break at a.py:1: why"],
        "fallbacks": ["aten.mm.default: library call x2", "aten.sort.default: no kernel x3"],
    }
    checks = {
        "timm/a": Result("timm/a", "ok", "", data),
        "timm/b": Result("timm/b", "failed", "gradients: 3 times eager's error in w"),
    }
    times = {"timm/a": Result("timm/a", "ok", "", {"tofuse": 1.2, "aot_eager": 1.0, "ratio": 1.2})}
    lines = document_text(["timm/a", "timm/b", "timm/c"], checks, times).splitlines()
    assert lines[2].startswith("1 of 3 small models") and "1 fail, 1 have not run" in lines[2]
    assert "| timm/a | yes | 1.25 | 1 | 3 | 1.2 / 1.0 | 1.20 |" in lines
    assert "| timm/b | gradients: 3 times eager's error in w |" in lines
    assert "| aten.sort.default | no kernel | 1 | 3 |" in lines
    assert "| graph break at a.py:1: why | a |" in lines
