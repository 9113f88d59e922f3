"""What a compiled function holds is freed with the last reference of the user's."""

import gc
import itertools
import weakref
from collections.abc import Callable

import pytest
import torch

import tofuse

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.scale = torch.nn.Buffer(torch.randn(8))
        self.offset = torch.randn(8)

    def forward(self, x):
        return torch.nn.functional.gelu(self.linear(x) + self.offset) * self.scale

    def wave(self, x):
        return torch.tanh(self.linear(x) - self.scale).sin()


def a_module():
    module = Layer()
    return module, [module, module.linear.weight, module.scale, module.offset]


def a_method():
    module = Layer()
    return module.wave, [module, module.linear.weight, module.scale]


def a_closure():
    tensor = torch.randn(8, requires_grad=True)

    def function(x):
        return torch.tanh(x * tensor + 1) / 3

    return function, [function, tensor]


def a_function_with_a_graph_break():
    module = Layer()

    def function(x):
        y = module(x)
        torch._dynamo.graph_break()
        return y.sin() * module.scale + 1

    return function, [function, module, module.linear.weight]


def call_in_background(target):
    compiled = tofuse.compile(target, background=True, hand_back=False)

    def call(x):
        compiled(x)
        tofuse.wait()
        return compiled(x)

    return call


WAYS: dict[str, Callable[[Callable[..., torch.Tensor]], Callable[..., object]]] = {
    "compile": tofuse.compile,
    "hand_back": lambda f: tofuse.compile(f, hand_back=True),
    "dynamic": lambda f: tofuse.compile(f, dynamic=True),
    "measure": lambda f: tofuse.compile(f, tune="measure"),
    "verify": lambda f: tofuse.compile(f, verify=True),
    "trace": lambda f: tofuse.compile(f, capture="trace"),
    "background": call_in_background,
    "explain": lambda f: lambda x: tofuse.explain(f)(x) and f(x),
    "backend": lambda f: torch.compile(f, backend="tofuse"),
}
TARGETS = (a_module, a_method, a_closure, a_function_with_a_graph_break)


def never(call):
    pass


def once_without_grad(call):
    with torch.no_grad():
        call(torch.randn(4, 8))


def with_backward(call):
    call(torch.randn(4, 8)).sum().backward()


def with_two_sizes(call):
    for rows in (4, 7, 4):
        call(torch.randn(rows, 8)).sum().backward()


USES = (never, once_without_grad, with_backward, with_two_sizes)


def after_use(make, way, use):
    """Weak references to what a target holds, after its only strong one is gone."""
    target, held = make()
    use(WAYS[way](target))
    return [weakref.ref(x) for x in held]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.broad(1)
def test_a_target_dies_with_the_last_reference(way, some):
    for make, use in some(itertools.product(TARGETS, USES), 4):
        held = after_use(make, way, use)
        gc.collect()
        assert [x() for x in held] == [None] * len(held), (make.__name__, use.__name__)


@pytest.mark.parametrize("way", ["compile", "dynamic"])
@pytest.mark.broad(1)
def test_a_module_whose_calls_may_be_handed_back_dies(way):
    held = after_use(a_module, way, once_without_grad)
    gc.collect()
    assert [x() for x in held] == [None] * len(held)


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.broad(1)
def test_a_backward_runs_after_its_function_is_gone(capture):
    module = Layer()
    x = torch.randn(5, 8, requires_grad=True)
    (expected,) = torch.autograd.grad(module(x).sum(), x)
    compiled = tofuse.compile(module, capture=capture)
    loss = compiled(x).sum()
    held, function = weakref.ref(module), weakref.ref(compiled)
    del compiled, module
    torch._dynamo.reset()
    gc.collect()
    assert function() is None
    (gradient,) = torch.autograd.grad(loss, x)
    torch.testing.assert_close(gradient, expected)
    del loss
    gc.collect()
    assert held() is None
