"""Graph breaks that are known beforehand: the function is followed once, and does what it does."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch._dynamo.utils import clear_compilation_metrics, counters, get_compilation_metrics
from torch.testing import assert_close

import tofuse
from tofuse.torch_internals.graph_break_prediction import DISABLED, PARAMETER

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def followed(compile, function, *args):
    """The result for a given seed, and how often Dynamo began a function anew."""
    counters.clear()
    clear_compilation_metrics()
    torch.manual_seed(0)
    result = compile(function)(*args)
    restarts = [m.restart_reasons or () for m in get_compilation_metrics()]
    return result, sum(map(len, restarts))


def in_torch(function):
    return torch.compile(function, backend="eager")


def projected(x):
    return nn.Linear(x.shape[1], 3, device=x.device)(x.sin()).cos()


def by_names(x):
    layer = nn.Linear(in_features=8, out_features=3, bias=False, dtype=torch.float32)
    return layer(x * 2) + 1


def several(x):
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


def in_a_loop(x):
    for _ in range(3):
        x = nn.Linear(8, 8)(x).relu()
    return x


def chosen(x):
    kind = nn.Linear if x.shape[0] > 2 else nn.Identity
    return kind(*(8, 4))(x.sin())


def given_weights(x):
    """Dynamo makes a parameter of an argument without a break."""
    return nn.Embedding(5, 8, _weight=x)(torch.arange(3)).sin()


@torch.compiler.disable
def printed(x):
    return x.cumsum(0)


def disabled(x):
    return printed(x.sin()) * 2


class Inside(nn.Module):
    def forward(self, x):
        return nn.Linear(8, 2)(x.sin())


@pytest.mark.parametrize(
    "function",
    [
        projected,
        by_names,
        several,
        without_parameters,
        without_gradients,
        given_weights,
        disabled,
    ],
)
def test_the_function_is_followed_once(function):
    """It returns what eager returns, and leaves the generator as eager does."""
    x = torch.randn(5, 8)
    torch.manual_seed(0)
    expected, drawn = function(x), torch.rand(1)
    result, begun_anew = followed(tofuse.compile, function, x)
    assert torch.equal(torch.rand(1), drawn)
    assert_close(result, expected)
    assert begun_anew == 0


def test_dynamo_itself_begins_anew():
    """And other backends are left as they are, though ours has foreseen breaks before."""
    x = torch.randn(5, 8)
    assert followed(tofuse.compile, projected, x)[1] == 0
    torch._dynamo.reset()
    assert followed(in_torch, projected, x)[1] == 1


@pytest.mark.parametrize("function, restarts", [(in_a_loop, None), (chosen, 1), (Inside(), 1)])
def test_what_is_not_known_dynamo_finds_out(function, restarts):
    x = torch.randn(5, 8)
    torch.manual_seed(0)
    expected = function(x)
    result, begun_anew = followed(tofuse.compile, function, x)
    assert_close(result, expected)
    assert restarts is None or begun_anew == restarts


def test_sizes_that_vary():
    compiled = tofuse.compile(projected, dynamic=True)
    for width in (8, 9, 12):
        x = torch.randn(4, width)
        torch.manual_seed(0)
        expected = projected(x)
        torch.manual_seed(0)
        assert_close(compiled(x), expected)


def test_gradients_reach_what_is_before_the_break():
    x, y = (torch.ones(5, 8, requires_grad=True) for _ in "xy")
    torch.manual_seed(0)
    projected(x).sum().backward()
    torch.manual_seed(0)
    tofuse.compile(projected)(y).sum().backward()
    assert_close(y.grad, x.grad)


def test_the_break_is_told_by_dynamos_name():
    x = torch.randn(5, 8)
    for function, kind in ((projected, PARAMETER), (disabled, DISABLED)):
        for compile in (in_torch, tofuse.compile):
            torch._dynamo.reset()
            followed(compile, function, x)
            (told,) = counters["graph_break"]
            assert told.startswith(kind)


def test_with_fullgraph_it_is_an_error():
    with pytest.raises(torch._dynamo.exc.Unsupported, match="Parameter"):
        tofuse.compile(projected, fullgraph=True)(torch.randn(5, 8))


def test_an_error_of_the_layer_is_raised():
    def wrong(x):
        return nn.Linear(8)(x)  # type: ignore[call-arg]

    with pytest.raises(TypeError, match="out_features"):
        tofuse.compile(wrong)(torch.randn(5, 8))


def test_as_a_backend_of_torch_compile():
    x = torch.randn(5, 8)
    _, begun_anew = followed(lambda f: torch.compile(f, backend="tofuse"), projected, x)
    assert begun_anew == 0
    torch._dynamo.reset()
    options: dict[str, str | int | bool | Callable[..., object]] = {"executors": "llvm"}
    named = lambda f: torch.compile(f, backend="tofuse", options=options)  # noqa: E731
    assert followed(named, projected, x)[1] == 0
