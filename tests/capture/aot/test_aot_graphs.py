"""Programs without AOTAutograd's wrappers: gradients, errors and writes that autograd must see."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import tofuse
from tofuse.capture.aot.aot_graphs import AOTGraphs
from tofuse.ir.runtime_kind import InferenceRuntime, RuntimeKind, TrainingRuntime

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.fixture
def runtimes(monkeypatch, tmp_path):
    """The runtime of each compiled program; None for AOTAutograd's wrappers."""
    monkeypatch.setenv("TOFUSE_CACHE_DIR", str(tmp_path))  # an empty cache
    kinds: list[RuntimeKind | None] = []
    runtime_kind = AOTGraphs.runtime_kind

    def recorded(graphs, arguments, **options):
        kinds.append(runtime_kind(graphs, arguments, **options))
        return kinds[-1]

    monkeypatch.setattr(AOTGraphs, "runtime_kind", recorded)
    return kinds


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
def test_functorch_transforms(x, w, name):
    compiled = tofuse.compile(scaled)
    compiled(x, w).sum().backward()
    x, w = x.detach(), w.detach()
    compiled(x, w)
    expected = TRANSFORMS[name](scaled, x, w)
    torch.testing.assert_close(TRANSFORMS[name](compiled, x, w), expected)


def test_checkpoints_and_saved_tensor_hooks(runtimes, x, w):
    compiled, expected = tofuse.compile(scaled), gradients(scaled, x, w)

    def checkpointed(x, w):
        return checkpoint(compiled, x, w, use_reentrant=False)

    torch.testing.assert_close(gradients(checkpointed, x, w), expected)
    out = checkpoint(compiled, x, w, use_reentrant=True).square().sum()
    out.backward()
    torch.testing.assert_close((x.grad, w.grad), expected)
    with torch.autograd.graph.save_on_cpu():
        torch.testing.assert_close(gradients(compiled, x, w), expected)
    assert any(isinstance(f, TrainingRuntime) for f in runtimes)


def test_autograd_errors_are_preserved(runtimes, x, w):
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
    assert runtimes and all(isinstance(f, TrainingRuntime) for f in runtimes)


def test_backward_inside_another_compiled_function(x, w):
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


def test_results_without_gradients(runtimes, x, w):
    def several(x, w):
        return x * w, x.detach() * 2, torch.argmax(x), x.sum() > 0

    found = tofuse.compile(several)(x, w)
    assert [f.requires_grad for f in found] == [True, False, False, False]
    torch.testing.assert_close(found, several(x, w))
    assert isinstance(runtimes[0], TrainingRuntime)


def test_mutated_arguments(runtimes, x):
    def update(x, mean, count):
        mean.mul_(0.5).add_(x.detach().mean(0))
        count += 1
        return (x - mean).exp()

    mean, count = torch.zeros(7), torch.tensor(3)
    other = mean.clone()
    before = mean._version
    found, expected = tofuse.compile(update)(x, mean, count), update(x, other, torch.tensor(0))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(mean, other)
    assert count == 4 and mean._version > before and isinstance(runtimes[0], TrainingRuntime)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), x), (expected.detach(),))


def test_inference_writes_increment_the_version_counter(runtimes, x):
    def update(x, mean):
        mean.add_(x.mean(0))
        return mean * 2

    mean = torch.zeros(7)
    saved = torch.ones(7, requires_grad=True) * mean
    found = tofuse.compile(update)(x.detach(), mean)
    torch.testing.assert_close(found, 2 * x.detach().mean(0))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.sum().backward()
    assert isinstance(runtimes[0], InferenceRuntime) and runtimes[0].mutated


PROGRAMS = [
    lambda x, w: x[1:],  # a view
    lambda x, w: (x, x * 2),  # an argument
    lambda x, w: x.T.sin().T,
    lambda x, w: w.detach() + x,  # `w` gets no gradient
    lambda x, w: x.clone().mul_(w),
    lambda x, w: torch.cumsum(x, 0) + torch.sort(w).values,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_with_and_without_wrappers(program, x, w):
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
def test_symbolic_sizes_in_the_backward(runtimes, program):
    compiled = tofuse.compile(program, dynamic=True)
    for rows in (5, 7, 1, 3, 12):
        x = torch.randn(rows, 6, dtype=torch.float64, requires_grad=True)
        w = torch.randn(6, 6, dtype=torch.float64, requires_grad=True)
        for _ in range(2):
            torch.testing.assert_close(gradients(compiled, x, w), gradients(program, x, w))
    assert runtimes and all(isinstance(f, TrainingRuntime) for f in runtimes)
    assert runtimes[0].saved_sizes


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_programs_that_enable_grad_mode(x, capture, mode):
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


def test_threads_race_to_compile_the_backward(x, w):
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
