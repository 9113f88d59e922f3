"""What one process has captured runs in the next without Dynamo, and only where its guards hold."""

import copy
import gc
import types
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tofuse
from tests.support.warm import backward, captures, compile_again, leaves

SCALE = 2.0
SETTINGS = {"activation": "relu", "scale": 3.0}


@dataclass
class Results:
    """What a program returns."""

    value: torch.Tensor
    name: str = "results"


class Scaled(nn.Module):
    """A module that reads state of every kind."""

    factor = 2.0

    def __init__(self):
        super().__init__()
        self.linear, self.norm, self.dropout = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.0)
        self.count, self.names, self.options = 3, ["a", "b"], {"power": 1.5}

    def forward(self, x):
        y = self.norm(self.linear(x)) * self.factor + self.count
        if SETTINGS["activation"] == "relu":
            y = F.relu(y)
        for name in self.names:
            y = y + len(name)
        return self.dropout(y) * SCALE * self.options["power"] * SETTINGS["scale"]


def _global(module):
    globals()["SCALE"] = 5.0


def _setting(module):
    SETTINGS["activation"] = "none"


def _attribute(module):
    module.count = 7


def _class_attribute(module):
    type(module).factor = 9.0


def _list(module):
    module.names.append("ccc")


def _dict(module):
    module.options["power"] = 2.5


def _parameter(module):
    module.linear.weight = nn.Parameter(torch.randn(8, 8))


def _tied(module):
    module.norm.weight = module.norm.bias


def _dtype(module):
    module.double()


def _mode(module):
    module.eval()


def _frozen(module):
    module.linear.weight.requires_grad_(False)


def _hook(module):
    module.linear.register_forward_hook(lambda module, args, result: result * 10)


def _submodule(module):
    module.linear = nn.Sequential(nn.Linear(8, 8), nn.Tanh())


def _method(module):
    module.forward = types.MethodType(lambda self, x: x * 100, module)


CHANGES = (
    *(_global, _setting, _attribute, _class_attribute, _list, _dict, _parameter, _tied),
    *(_dtype, _mode, _frozen, _hook, _submodule, _method),
)


@pytest.fixture
def options(tmp_path, fresh_dynamo):
    """A cache of the test's own; state that tests change is as before at the end."""
    settings, scale, factor = dict(SETTINGS), SCALE, Scaled.factor
    yield {"cache_dir": tmp_path, "hand_back": False}
    SETTINGS.update(settings)
    globals()["SCALE"], Scaled.factor = scale, factor


@pytest.mark.parametrize("is_running", [False, True])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__[1:])
def test_a_change_of_what_the_program_reads_is_seen(change, is_running, options):
    module, x = Scaled(), torch.randn(4, 8)
    warm = compile_again(module, options, x)
    if is_running:
        backward(warm(x))
        assert not captures()
    change(module)
    x = x.double() if change is _dtype else x
    reference = copy.deepcopy(module)
    if change is _method:
        _method(reference)
    torch.testing.assert_close(warm(x), reference(x))


def _keywords(x, /, y, *rest, scale=2.0, **more):
    total = x * scale + y
    for z in (*rest, *more.values()):
        total = total + z
    return total.relu()


def _structures(inputs, flag=True):
    x, (y, z) = inputs["x"], inputs["pair"]
    return {"sum": (x + y).exp(), "more": [z * 2, (x, flag)]}


def _dataclass(x):
    return Results((x * 2).tanh())


def _written(x, y):
    x.mul_(2).add_(y)
    return x.sin() + 1


def _tensor_scale(x, y):
    return x.softmax(-1) * y, (x.shape[0] * y).cos()


def _t(*sizes, dtype=torch.float32):
    return torch.randn(*sizes, dtype=dtype)


CALLS: dict = {
    "keywords": (_keywords, lambda: ((_t(3), _t(3), _t(3)), {"scale": 3.5, "w": _t(3)})),
    "defaults": (_keywords, lambda: ((_t(5), _t(5)), {})),
    "structures": (_structures, lambda: (({"x": _t(2, 3), "pair": (_t(3), _t(1))},), {})),
    "a dataclass": (_dataclass, lambda: ((_t(7),), {})),
    "writes": (_written, lambda: ((_t(4, 4), _t(4)), {})),
    "transposed": (_tensor_scale, lambda: ((_t(5, 3).t(), _t(5, dtype=torch.float64)), {})),
    "empty": (_tensor_scale, lambda: ((_t(0, 3), _t(3)), {})),
    "gradients": (_tensor_scale, lambda: ((_t(3, 3).requires_grad_(), _t(3)), {})),
    "bfloat16": (_tensor_scale, lambda: ((_t(3, 17).bfloat16(), _t(17).bfloat16()), {})),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_of_any_kind_run_without_dynamo(name, options):
    function, make = CALLS[name]
    # eager rounds each op
    rtol, atol = (2e-2, 2e-2) if name == "bfloat16" else (1e-5, 1e-6)
    args, kwargs = make()
    warm = compile_again(function, options, *copy.deepcopy(args), **kwargs)
    ours, theirs = copy.deepcopy(args), copy.deepcopy(args)
    for _ in range(2):
        torch.testing.assert_close(
            leaves(warm(*ours, **kwargs)),
            leaves(function(*theirs, **kwargs)),
            rtol=rtol,
            atol=atol,
        )
        torch.testing.assert_close(ours, theirs)
    assert not captures()


def test_a_dataclass_is_returned(options):
    x = torch.randn(3)
    assert isinstance(compile_again(_dataclass, options, x)(x), Results)


@pytest.mark.parametrize("sizes", [(3, 8), (1, 8), (0, 8)])
def test_another_kind_of_call_is_captured(sizes, options):
    module = nn.Sequential(nn.Linear(8, 4), nn.GELU())
    warm = compile_again(module, options, torch.randn(5, 8))
    x = torch.randn(sizes)
    torch.testing.assert_close(warm(x), module(x))
    assert captures() == 1
    with torch.no_grad():
        torch.testing.assert_close(warm(torch.ones(5, 8)), module(torch.ones(5, 8)))
    assert captures() == 1


def test_programs_of_several_calls_are_kept(options):
    module = nn.Sequential(nn.Linear(8, 4), nn.GELU())
    kinds = [torch.randn(5, 8), torch.randn(6, 8, 8)]
    first = tofuse.compile(module, dynamic=False, **options)
    for x in kinds:
        backward(first(x))
    with torch.no_grad():
        first(kinds[0])
    captures()
    later = tofuse.compile(module, dynamic=False, **options)
    for x in kinds:
        torch.testing.assert_close(later(x), module(x))
    with torch.no_grad():
        torch.testing.assert_close(later(kinds[0]), module(kinds[0]))
    assert not captures()


def test_the_same_masks_are_drawn(options):
    module, x = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5)), torch.randn(4, 8)
    first = tofuse.compile(module, **options)
    torch.manual_seed(3)
    expected = first(x)
    backward(expected)
    warm = compile_again(module, options, x)
    torch.manual_seed(3)
    assert torch.equal(warm(x), expected)
    assert not captures()


def test_second_derivatives_are_eagers(options):
    function = lambda x: (x.sin() * x).sum()  # noqa: E731
    x = torch.randn(5, requires_grad=True)
    warm = compile_again(function, options, x)
    (gradient,) = torch.autograd.grad(warm(x), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), x)
    assert not captures()
    (expected,) = torch.autograd.grad(
        torch.autograd.grad(function(x), x, create_graph=True)[0].sum(), x
    )
    torch.testing.assert_close(second, expected)


def test_modes_see_the_operators(options):
    warm = compile_again(_dataclass, options, torch.randn(4))
    warm(torch.randn(4))
    rows = torch.randn(3, 4)
    torch.testing.assert_close(
        torch.func.vmap(lambda x: warm(x).value)(rows), _dataclass(rows).value
    )


def test_a_stance_of_torch_holds(options):
    warm = compile_again(_dataclass, options, torch.randn(4))
    x = torch.randn(4)
    warm(x)
    seen: list[str] = []

    class Recorder(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with torch.compiler.set_stance("force_eager"), Recorder():
        warm(x)
    assert "aten.tanh.default" in seen
    with torch.compiler.set_stance("fail_on_recompile"), pytest.raises(RuntimeError):
        warm(torch.randn(5))


def test_names_of_a_program_are_removed_with_it(options):
    def names():
        return [name for name in globals() if name.startswith("__tofuse_")]

    gc.collect()
    before = names()
    warm = compile_again(_dataclass, options, torch.randn(4))
    warm(torch.randn(4))
    assert len(names()) > len(before)
    del warm
    gc.collect()
    assert names() == before


def test_arguments_that_are_one_tensor(options):
    function = lambda x, y: (x * y).exp()  # noqa: E731
    warm = compile_again(function, options, torch.randn(3), torch.randn(3))
    x = torch.randn(3)
    torch.testing.assert_close(warm(x, x), function(x, x))
    y = torch.randn(6)
    torch.testing.assert_close(warm(y[:3], y[3:]), function(y[:3], y[3:]))


def test_written_arguments_that_overlap(options):
    def doubled(x, y):
        x.mul_(2)
        return x.sin() + y

    warm = compile_again(doubled, options, torch.randn(4, 4), torch.randn(4))
    ours = torch.randn(4, 4)
    theirs = ours.clone()
    torch.testing.assert_close(warm(ours, ours[0]), doubled(theirs, theirs[0]))
    torch.testing.assert_close(ours, theirs)


def test_functions_with_graph_breaks_are_captured_again(options):
    def broken(x):
        y = x.sin() + 1
        torch._dynamo.graph_break()
        return y.cos() * 2

    x = torch.randn(5)
    warm = compile_again(broken, options, x)
    torch.testing.assert_close(warm(x), broken(x))
    assert captures()


def test_a_global_variable_is_written(options):
    def counting(x):
        global SCALE
        SCALE = SCALE + 1
        return x * 2 + SCALE

    warm = compile_again(counting, options, torch.ones(2))
    before = SCALE
    torch.testing.assert_close(warm(torch.ones(2)), torch.full((2,), before + 3))


class Decides(type):
    """A metaclass whose code decides what an instance is, which no other process can compare."""

    def __instancecheck__(cls, value):
        return True


class Anything(metaclass=Decides):
    """What everything is an instance of."""


def _asks(x: torch.Tensor) -> torch.Tensor:
    return x.sin() if isinstance(3, Anything) else x.cos()


def _is_kept(x):
    return x.sin() + 1


def test_a_report_says_why_a_program_is_not_kept(options):
    x = torch.randn(8, 8)
    lines = tofuse.explain(_asks, **options)(x).decisions
    assert any("captures this function again" in line and "Anything" in line for line in lines)
    lines = tofuse.explain(_is_kept, **options)(x).decisions
    assert not any("captures" in line for line in lines)


def test_a_report_names_options_whose_programs_are_not_kept(options):
    lines = tofuse.explain(_is_kept, verify=True, **options)(torch.randn(8, 8)).decisions
    assert any("programs with verify are not kept" in line for line in lines)


class Spline(nn.Module):
    """A small network, whose training steps eager runs as fast."""

    def __init__(self):
        super().__init__()
        self.register_buffer("grid", torch.linspace(-1, 1, 11))
        self.weight = nn.Parameter(torch.randn(13, 11, 3))

    def forward(self, x):
        basis = torch.exp(-((x[..., None] - self.grid).abs() ** 1.5) * 4)
        return torch.einsum("bik,ikj->bj", basis, self.weight)


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_a_program_that_eager_runs_starts_warm(rows, options):
    """Nothing compiles its backward, so that its compiled graphs are not on disk."""
    x, model = torch.randn(rows, 13), Spline()
    options = {**options, "hand_back": True}
    compiled = compile_again(model, options, x)
    model.zero_grad()
    result = compiled(x)
    assert captures() == 0
    assert torch.equal(result, model(x)) and torch.equal(compiled(x), result)
    assert result.requires_grad and torch.autograd.grad(result.sum(), model.weight)
