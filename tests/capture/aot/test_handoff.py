"""Programs under Dynamo that run without AOTAutograd's wrappers: what autograd must still see."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import tofuse
from tofuse.capture.aot import handoff

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.fixture
def forms(monkeypatch, tmp_path):
    """How each program that was compiled runs; None for AOTAutograd's wrappers."""
    monkeypatch.setenv("TOFUSE_CACHE_DIR", str(tmp_path))  # where no program is yet
    found: list[handoff.Form | None] = []
    form = handoff.Parts.form

    def noted(parts, arguments, **more):
        found.append(form(parts, arguments, **more))
        return found[-1]

    monkeypatch.setattr(handoff.Parts, "form", noted)
    return found


def scaled(x, w):
    return (torch.sin(x) * w).sum(-1).relu()


@pytest.fixture
def x():
    return torch.randn(5, 7, requires_grad=True)


@pytest.fixture
def w():
    return torch.randn(7, requires_grad=True)


def gradients(function, *args):
    return torch.autograd.grad(function(*args).square().sum(), args)


TRANSFORMS = {
    "vmap": lambda f, x, w: torch.func.vmap(f, (0, None))(x[:, None], w),
    "grad": lambda f, x, w: torch.func.grad(lambda a: f(a, w).sum())(x),
    "jacrev": lambda f, x, w: torch.func.jacrev(lambda a: f(a, w))(x),
    "jvp": lambda f, x, w: torch.func.jvp(lambda a: f(a, w), (x,), (x,))[1],
    "hessian": lambda f, x, w: torch.func.hessian(lambda a: f(a, w).sum())(x),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own transforms
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_functions(x, w, name):
    compiled = tofuse.compile(scaled)
    compiled(x, w).sum().backward()
    x, w = x.detach(), w.detach()
    compiled(x, w)
    expected = TRANSFORMS[name](scaled, x, w)
    torch.testing.assert_close(TRANSFORMS[name](compiled, x, w), expected)


def test_checkpoints_and_saved_tensors_elsewhere(forms, x, w):
    compiled, expected = tofuse.compile(scaled), gradients(scaled, x, w)

    def again(x, w):
        return checkpoint(compiled, x, w, use_reentrant=False)

    torch.testing.assert_close(gradients(again, x, w), expected)
    out = checkpoint(compiled, x, w, use_reentrant=True).square().sum()
    out.backward()
    torch.testing.assert_close((x.grad, w.grad), expected)
    with torch.autograd.graph.save_on_cpu():
        torch.testing.assert_close(gradients(compiled, x, w), expected)
    assert any(isinstance(f, handoff.Training) for f in forms)


def test_errors_of_autograd(forms, x, w):
    compiled = tofuse.compile(scaled)
    out = compiled(x, w).sum()
    out.backward(retain_graph=True)
    out.backward()
    with pytest.raises(RuntimeError, match="second time"):
        out.backward()
    inner = x * 1
    out = compiled(inner, w).sum()
    with torch.no_grad():
        inner.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()
    assert forms and all(isinstance(f, handoff.Training) for f in forms)


def test_a_backward_inside_another_compiled_function(x, w):
    compiled = tofuse.compile(scaled)

    def step(x, w):
        compiled(x, w).square().sum().backward()

    torch.compile(step, backend="eager")(x, w)
    torch.testing.assert_close((x.grad, w.grad), gradients(scaled, x, w))


def test_compiled_autograd(x, w):
    compiled = tofuse.compile(scaled)
    expected = gradients(scaled, x, w)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        for _ in range(2):
            x.grad = w.grad = None
            compiled(x, w).square().sum().backward()
            torch.testing.assert_close((x.grad, w.grad), expected)


def test_results_without_a_gradient(forms, x, w):
    def several(x, w):
        return x * w, x.detach() * 2, torch.argmax(x), x.sum() > 0

    found = tofuse.compile(several)(x, w)
    assert [f.requires_grad for f in found] == [True, False, False, False]
    torch.testing.assert_close(found, several(x, w))
    assert isinstance(forms[0], handoff.Training)


def test_arguments_that_are_written(forms, x):
    def run(x, mean, count):
        mean.mul_(0.5).add_(x.detach().mean(0))
        count += 1
        return (x - mean).exp()

    mean, count = torch.zeros(7), torch.tensor(3)
    other = mean.clone()
    before = mean._version
    found, expected = tofuse.compile(run)(x, mean, count), run(x, other, torch.tensor(0))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(mean, other)
    assert count == 4 and mean._version > before and isinstance(forms[0], handoff.Training)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), x), (expected.detach(),))


def test_writes_where_nothing_is_differentiated_are_counted(forms, x):
    def run(x, mean):
        mean.add_(x.mean(0))
        return mean * 2

    mean = torch.zeros(7)
    saved = torch.ones(7, requires_grad=True) * mean
    found = tofuse.compile(run)(x.detach(), mean)
    torch.testing.assert_close(found, 2 * x.detach().mean(0))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.sum().backward()
    assert isinstance(forms[0], handoff.Inference) and forms[0].written


KEPT = [
    lambda x, w: x[1:],  # a view
    lambda x, w: (x, x * 2),  # an argument
    lambda x, w: x.T.sin().T,
    lambda x, w: w.detach() + x,  # which gives `w` none
    lambda x, w: x.clone().mul_(w),
    lambda x, w: torch.cumsum(x, 0) + torch.sort(w).values,
]


@pytest.mark.parametrize("program", KEPT)
def test_programs_of_both_ways(program, x, w):
    found: list[tuple[torch.Tensor | None, torch.Tensor | None]] = []
    for run in (tofuse.compile(program), program):
        out = run(x, w)
        x.grad = w.grad = None
        sum(o.square().sum() for o in (out if isinstance(out, tuple) else (out,))).backward()
        found.append((x.grad, w.grad))
    torch.testing.assert_close(*found)


def by_rows(x, w):
    return (torch.softmax(x @ w, -1).view(-1) * x.shape[0]).view(x.shape[0], -1)


def by_columns(x, w):
    return F.layer_norm(x * w[0], (x.shape[-1],)) / x.shape[0]


@pytest.mark.parametrize("program", [by_rows, by_columns])
def test_sizes_that_the_backward_takes(forms, program):
    compiled = tofuse.compile(program, dynamic=True)
    for rows in (5, 7, 1, 3, 12):
        x = torch.randn(rows, 6, dtype=torch.float64, requires_grad=True)
        w = torch.randn(6, 6, dtype=torch.float64, requires_grad=True)
        for _ in range(2):
            torch.testing.assert_close(gradients(compiled, x, w), gradients(program, x, w))
    assert forms and all(isinstance(f, handoff.Training) for f in forms)
    assert forms[0].sizes


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_programs_that_switch_gradients_on(x, capture, mode):
    def inner(x):
        with torch.enable_grad():
            return x * 3

    def outer(x):
        with torch.no_grad():
            return x * 2, inner(x)

    for program in (inner, outer):
        compiled = tofuse.compile(program, capture=capture)
        for _ in range(2):
            with mode():
                found, expected = compiled(x), program(x)
            torch.testing.assert_close(found, expected)
            pairs = [(found, expected)] if program is inner else zip(found, expected, strict=True)
            for a, b in pairs:
                assert a.requires_grad == b.requires_grad
                if b.requires_grad:
                    (gradient,) = torch.autograd.grad(a.sum(), x)
                    torch.testing.assert_close(gradient, torch.full_like(x, 3))


def test_threads_that_meet_in_the_first_backward(x, w):
    compiled, expected = tofuse.compile(scaled), gradients(scaled, x, w)
    compiled(x, w)
    found: list[object] = []

    def run():
        found.append(gradients(compiled, x, w))

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    for gradient in found:
        torch.testing.assert_close(gradient, expected)
