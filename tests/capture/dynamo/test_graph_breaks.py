"""Graph breaks in the report: their place and reason."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tofuse
from tofuse.report.html import page_text

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def printing(x):
    x = x.sin() + 1
    print("a graph break")
    return x.cos() * 2


def looping(x):
    for _ in range(2):
        x = x.sin() * x.sum().item()
    return x


def test_break_has_line_and_reason():
    report = tofuse.explain(printing)(torch.rand(5))
    line = printing.__code__.co_firstlineno + 2
    (sentence,) = report.breaks
    assert sentence.startswith(f"graph break at test_graph_breaks.py:{line}: ")
    assert "print" in sentence
    assert len(report.graphs) == 2
    assert sentence.split(":")[0] in str(report) and sentence[:40] in page_text(report)


def test_skipped_function_is_named():
    report = tofuse.explain(looping)(torch.rand(5))
    assert not report.graphs and "nothing was compiled" in str(report)
    skipped = [s for s in report.breaks if s.startswith("not compiled: looping, ")]
    assert skipped and "loop" in skipped[0] and skipped[0] in " ".join(str(report).split())


def test_unsupported_layer_is_named():
    report = tofuse.explain(nn.LSTM(6, 4))(torch.rand(5, 6))
    assert not report.graphs and "LSTM" in report.breaks[0]


def test_no_break_no_sentence():
    tofuse.explain(printing)(torch.rand(5))
    assert not tofuse.explain(lambda x: x.sin() + 1)(torch.rand(5)).breaks


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("measure", [False, True])
def test_training_step_that_returns_its_loss(measure):
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    optimiser = torch.optim.Adam(model.parameters())

    def step(x, y):
        optimiser.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimiser.step()
        return loss

    report = tofuse.explain(step, measure=measure)(torch.rand(5, 8), torch.randint(0, 3, (5,)))
    assert {g.phase for g in report.graphs} == {"forward", "backward", "inference"}
    assert any("backward" in sentence for sentence in report.breaks)
    assert (report.calls is not None) == measure


def test_kernels_in_one_launch_are_counted_once():
    report = tofuse.explain(lambda a, b: (a.sin() + 1, b.cos() * 2))(torch.rand(8), torch.rand(4))
    assert (len(report.kernels), report.launches_after, report.launches_after_grouping) == (2, 2, 1)
