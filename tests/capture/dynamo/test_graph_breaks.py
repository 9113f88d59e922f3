"""Graph breaks: results are eager's, and the report has their place and reason."""

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
    reason = report.breaks[0]  # torch 2.15 finds another one first
    assert not report.graphs and ("LSTM" in reason or "python_type()" in reason)


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


def linear(x):
    return nn.Linear(x.shape[1], 3, device=x.device)(x.sin()).cos()


def keyword_arguments(x):
    layer = nn.Linear(in_features=8, out_features=3, bias=False, dtype=torch.float32)
    return layer(x * 2) + 1


def several_layers(x):
    norm = nn.LayerNorm(8)
    wide = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    return norm(x + wide(x.tanh()))


def without_parameters(x):
    norm, drop = nn.LayerNorm(8, elementwise_affine=False), nn.Dropout(0.0)
    return drop(norm(x.sin()))


def without_gradients(x):
    y = x.exp()
    with torch.no_grad():
        y = nn.Linear(8, 8)(y)
    return y * x


def layer_in_loop(x):
    for _ in range(3):
        x = nn.Linear(8, 8)(x).relu()
    return x


def conditional_layer(x):
    kind = nn.Linear if x.shape[0] > 2 else nn.Identity
    return kind(*(8, 4))(x.sin())


def parameter_from_argument(x):
    """Dynamo converts an argument to a parameter without a break."""
    return nn.Embedding(5, 8, _weight=x)(torch.arange(3)).sin()


@torch.compiler.disable
def disabled_cumsum(x):
    return x.cumsum(0)


def calls_disabled(x):
    return disabled_cumsum(x.sin()) * 2


class LayerInForward(nn.Module):
    def forward(self, x):
        return nn.Linear(8, 2)(x.sin())


@pytest.mark.parametrize(
    "function",
    [
        linear,
        keyword_arguments,
        several_layers,
        without_parameters,
        without_gradients,
        layer_in_loop,
        conditional_layer,
        parameter_from_argument,
        calls_disabled,
        LayerInForward(),
    ],
)
def test_layers_built_inside_match_eager(function):
    """Results and the state of the random generator are eager's."""
    x = torch.randn(5, 8)
    torch.manual_seed(0)
    expected, next_random = function(x), torch.rand(1)
    torch.manual_seed(0)
    result = tofuse.compile(function)(x)
    assert torch.equal(torch.rand(1), next_random)
    torch.testing.assert_close(result, expected)


def test_symbolic_sizes():
    compiled = tofuse.compile(linear, dynamic=True)
    for width in (8, 9, 12):
        x = torch.randn(4, width)
        torch.manual_seed(0)
        expected = linear(x)
        torch.manual_seed(0)
        torch.testing.assert_close(compiled(x), expected)


def test_gradients_flow_through_the_break():
    x, y = (torch.ones(5, 8, requires_grad=True) for _ in "xy")
    torch.manual_seed(0)
    linear(x).sum().backward()
    torch.manual_seed(0)
    tofuse.compile(linear)(y).sum().backward()
    torch.testing.assert_close(y.grad, x.grad)


def test_fullgraph_is_an_error():
    with pytest.raises(torch._dynamo.exc.Unsupported, match="Parameter"):
        tofuse.compile(linear, fullgraph=True)(torch.randn(5, 8))


def test_constructor_errors_are_raised():
    def wrong(x):
        return nn.Linear(8)(x)  # type: ignore[call-arg]

    with pytest.raises(TypeError, match="out_features"):
        tofuse.compile(wrong)(torch.randn(5, 8))
