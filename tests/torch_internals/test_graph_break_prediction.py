"""Predicted graph breaks: Dynamo traces the function once, and results match eager's."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch._dynamo.utils import clear_compilation_metrics, counters, get_compilation_metrics
from torch.testing import assert_close

import tofuse
from tofuse.torch_internals.graph_break_prediction import DISABLED, PARAMETER

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def run_and_count_restarts(compile, function, *args):
    """Return the result for a fixed seed, and how often Dynamo restarted a function."""
    counters.clear()
    clear_compilation_metrics()
    torch.manual_seed(0)
    result = compile(function)(*args)
    restarts = [m.restart_reasons or () for m in get_compilation_metrics()]
    return result, sum(map(len, restarts))


def compile_in_torch(function):
    return torch.compile(function, backend="eager")


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
        parameter_from_argument,
        calls_disabled,
    ],
)
def test_function_is_traced_once(function):
    """Results and the state of the random generator match eager's."""
    x = torch.randn(5, 8)
    torch.manual_seed(0)
    expected, next_random = function(x), torch.rand(1)
    result, restarts = run_and_count_restarts(tofuse.compile, function, x)
    assert torch.equal(torch.rand(1), next_random)
    assert_close(result, expected)
    assert restarts == 0


def test_other_backends_restart():
    """Other backends are unchanged after ours has predicted breaks."""
    x = torch.randn(5, 8)
    assert run_and_count_restarts(tofuse.compile, linear, x)[1] == 0
    torch._dynamo.reset()
    assert run_and_count_restarts(compile_in_torch, linear, x)[1] == 1


@pytest.mark.parametrize(
    "function, expected_restarts",
    [(layer_in_loop, None), (conditional_layer, 1), (LayerInForward(), 1)],
)
def test_unpredicted_breaks_restart(function, expected_restarts):
    x = torch.randn(5, 8)
    torch.manual_seed(0)
    expected = function(x)
    result, restarts = run_and_count_restarts(tofuse.compile, function, x)
    assert_close(result, expected)
    assert expected_restarts is None or restarts == expected_restarts


def test_symbolic_sizes():
    compiled = tofuse.compile(linear, dynamic=True)
    for width in (8, 9, 12):
        x = torch.randn(4, width)
        torch.manual_seed(0)
        expected = linear(x)
        torch.manual_seed(0)
        assert_close(compiled(x), expected)


def test_gradients_flow_through_the_break():
    x, y = (torch.ones(5, 8, requires_grad=True) for _ in "xy")
    torch.manual_seed(0)
    linear(x).sum().backward()
    torch.manual_seed(0)
    tofuse.compile(linear)(y).sum().backward()
    assert_close(y.grad, x.grad)


def test_breaks_are_reported_in_dynamos_words():
    x = torch.randn(5, 8)
    for function, kind in ((linear, PARAMETER), (calls_disabled, DISABLED)):
        for compile in (compile_in_torch, tofuse.compile):
            torch._dynamo.reset()
            run_and_count_restarts(compile, function, x)
            (reason,) = counters["graph_break"]
            assert reason.startswith(kind)


def test_fullgraph_is_an_error():
    with pytest.raises(torch._dynamo.exc.Unsupported, match="Parameter"):
        tofuse.compile(linear, fullgraph=True)(torch.randn(5, 8))


def test_constructor_errors_are_raised():
    def wrong(x):
        return nn.Linear(8)(x)  # type: ignore[call-arg]

    with pytest.raises(TypeError, match="out_features"):
        tofuse.compile(wrong)(torch.randn(5, 8))


def test_backend_of_torch_compile():
    x = torch.randn(5, 8)
    _, restarts = run_and_count_restarts(lambda f: torch.compile(f, backend="tofuse"), linear, x)
    assert restarts == 0
    torch._dynamo.reset()
    options: dict[str, str | int | bool | Callable[..., object]] = {"executors": "llvm"}
    named = lambda f: torch.compile(f, backend="tofuse", options=options)  # noqa: E731
    assert run_and_count_restarts(named, linear, x)[1] == 0
