"""Launches that run by tiles of rows compute what separate launches do."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tofuse
from benchmarks.workloads.neighbours import gray_scott, heat, heat_volume, life, wave
from tofuse.cost.machine import default_machine


@pytest.fixture(autouse=True)
def two_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def small_caches(tmp_path):
    """Return options for a machine whose L2 cache holds few rows of small tensors."""
    machine = default_machine(2, 16, l2_bytes=48 << 10, l3_bytes=96 << 10)
    machine = replace(machine, core_rate=100.0, memory_rate=100.0)
    path = tmp_path / "machine.json"
    path.write_text(str(machine))
    return {"machine": str(path), "cache_dir": str(tmp_path / "cache"), "specialize": True}


def blurred(u):
    """Three blurs along rows and columns, with what is between them as a result."""
    p = F.pad(u[None, None], (0, 0, 2, 2), mode="reflect")[0, 0]
    n = u.shape[0]
    mean = (p[:n] + p[1 : n + 1] + p[2 : n + 2] + p[3 : n + 3] + p[4:]) / 5
    sharp = u * 2 - mean
    q = F.pad(sharp[None, None], (0, 0, 1, 1), mode="replicate")[0, 0]
    return mean, (q[:-2] * q[2:]).sin()


def descending(u):
    """Differences that shrink the field by a row for each step."""
    for _ in range(3):
        u = (u[1:] - u[:-1]).tanh() + u[1:] * 0.5
    return u


def normalized(u):
    """Rows that are normalized between two stencils."""
    v = F.pad(u[2:] + u[:-2], (0, 0, 1, 1))
    v = v / (v.abs().sum(1, keepdim=True) + 1)
    return F.pad(v[2:] - v[:-2], (0, 0, 1, 1)) + u


PROGRAMS: dict[str, tuple[Callable[..., object], int]] = {
    "heat of two steps": (heat(2), 1),
    "heat of five steps": (heat(5), 1),
    "wave": (wave, 2),
    "Gray-Scott": (gray_scott(3), 2),
    "life": (life, 1),
    "blurs": (blurred, 1),
    "differences": (descending, 1),
    "normalized rows": (normalized, 1),
}


def groups_by_tiles(report):
    return sum(graph.plan.count("  tiles ") for graph in report.graphs)


def fields(count, shape, dtype=torch.float32):
    torch.manual_seed(0)
    return [torch.rand(shape).to(dtype) for _ in range(count)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(512, 200), (1000, 65)], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_tiles_compute_what_eager_does(name, shape, dtype, small_caches):
    program, count = PROGRAMS[name]
    arguments = fields(count, shape, dtype)
    if name == "life":
        arguments = [(x > 0.5).to(dtype) for x in arguments]
    with torch.no_grad():
        compiled = tofuse.compile(program, **small_caches)
        found = [compiled(*arguments) for _ in range(3)][-1]
        expected = program(*[x.double() for x in arguments])
        eager = program(*arguments)
    found, expected, eager = (x if isinstance(x, tuple) else (x,) for x in (found, expected, eager))
    for ours, exact, other in zip(found, expected, eager, strict=True):
        error, allowed = (ours.double() - exact).abs().max(), (other.double() - exact).abs().max()
        assert error <= 2 * allowed + 1e-6
        assert ours.dtype == other.dtype and ours.stride() == other.stride()


@pytest.mark.parametrize("name", ["heat of two steps", "heat of five steps", "wave", "Gray-Scott"])
def test_programs_run_by_tiles(name, small_caches):
    program, count = PROGRAMS[name]
    with torch.no_grad():
        report = tofuse.explain(program, **small_caches)(*fields(count, (1000, 200)))
    assert groups_by_tiles(report) >= 1


@pytest.mark.parametrize("threads", [1, 2])
def test_volumes_and_threads(threads, small_caches):
    torch.set_num_threads(threads)
    (u,) = fields(1, (96, 24, 40))
    with torch.no_grad():
        found = tofuse.compile(heat_volume, **small_caches)(u)
        torch.testing.assert_close(found, heat_volume(u))


@pytest.mark.parametrize("name", ["heat of two steps", "Gray-Scott", "differences"])
def test_gradients_by_tiles(name, small_caches):
    program, count = PROGRAMS[name]
    ours = [x.requires_grad_() for x in fields(count, (600, 130))]
    exact = [x.detach().double().requires_grad_() for x in ours]

    def gradients(fn, arguments):
        results = fn(*arguments)
        results = results if isinstance(results, tuple) else (results,)
        return torch.autograd.grad(sum((x * x).sum() for x in results), arguments)

    compiled = tofuse.compile(program, **small_caches)
    for _ in range(2):
        found = gradients(compiled, ours)
    for a, b in zip(found, gradients(program, exact), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


def test_written_arguments_are_not_read_after_they_are_written(small_caches):
    """A tile would read rows of the argument that an earlier tile has written."""

    def update(u):
        return u.copy_(heat(2)(u))

    (u,) = fields(1, (600, 130))
    expected = heat(2)(u)
    with torch.no_grad():
        torch.testing.assert_close(tofuse.compile(update, **small_caches)(u), expected)
    torch.testing.assert_close(u, expected)


def test_scratch_lowers_the_peak(small_caches):
    (u,) = fields(1, (2000, 200))
    with torch.no_grad():
        report = tofuse.explain(heat(2), **small_caches)(u)
    (graph,) = report.graphs
    assert groups_by_tiles(report) == 1
    assert "tiles of their rows" in str(report)
    assert graph.peak_bytes < 1.2 * u.nbytes  # the result of the first step is in scratch


@pytest.mark.parametrize("planned", [1, 2, 4])
def test_exported_programs_run_on_any_number_of_threads(planned, tmp_path):
    (u,) = fields(1, (2000, 1024))  # more than L2 caches hold
    path = tmp_path / "heat.tofuse"
    torch.set_num_threads(planned)
    tofuse.export(Heat(), (u,), path)
    loaded, expected = tofuse.load(path), Heat()(u)
    for threads in (1, 2, 3, 4, 5, 7, 12):
        torch.set_num_threads(threads)
        torch.testing.assert_close(loaded(u), expected)


def test_backwards_run_on_another_number_of_threads():
    (u,) = fields(1, (2000, 1024))
    u.requires_grad_()
    torch.set_num_threads(4)
    compiled, expected = tofuse.compile(Heat()), torch.autograd.grad(Heat()(u).sum(), u)
    for threads in (4, 3, 1, 6):
        torch.set_num_threads(4)
        result = compiled(u).sum()
        torch.set_num_threads(threads)
        torch.testing.assert_close(torch.autograd.grad(result, u), expected)


def test_stored_programs_run_by_tiles(small_caches):
    (u,) = fields(1, (600, 130))
    for _ in range(2):
        torch.compiler.reset()
        with torch.no_grad():
            torch.testing.assert_close(tofuse.compile(heat(2), **small_caches)(u), heat(2)(u))


class Heat(torch.nn.Module):
    def forward(self, u):
        return heat(4)(u)


STEPS = (
    "F.pad({a}[2:] - {a}[:-2], (0, 0, 1, 1))",
    "{a} + 0.2 * ({b}.roll(1, 0) + {b}.roll(-1, 0) - 2 * {b})",
    "({a}.roll((1, -1), (0, 1)) * {b}).tanh()",
    "F.pad({a}[None, None], (1, 1, 2, 0), mode='replicate')[0, 0][1:-1, 1:-1] * {b}",
    "F.pad({a}[None, None], (0, 0, 1, 1), mode='reflect')[0, 0][2:] + {b}",
    "torch.cat([{a}[-1:], {a}[:-1]]) - {b}.sigmoid()",
    "{a} / (1 + {b}.abs().amax(1, keepdim=True))",
    "torch.where({a} > {b}.roll(2, 0), {a}, 0.5 * {b})",
    "{a}.to(torch.bfloat16).roll(1, 0).to({a}.dtype) * 0.5 + {b}",
    "{a}.flip(1) * 0.3 + {b}",
    "({a}.double().roll(-2, 0) + 1).rsqrt().nan_to_num(0.5, 1, -1).to({a}.dtype)",
    "{a} - {a}.mean(0) * 0.1",
)


def random_program(seed):
    """Return the text of a program of several steps, each of two results before it."""
    rng = random.Random(seed)
    names, lines = ["u", "v"], []
    for k in range(rng.randint(2, 7)):
        step = rng.choice(STEPS).format(a=names[-1], b=rng.choice(names))
        names.append(f"w{k}")
        lines.append(f"    {names[-1]} = {step}")
    returned = sorted({names[-1], rng.choice(names[2:])})
    return "\n".join(["def program(u, v):", *lines, f"    return {', '.join(returned)},"])


@pytest.mark.parametrize("seed", range(60))
def test_random_steps(seed, small_caches):
    namespace: dict[str, Any] = {"torch": torch, "F": F}
    exec(random_program(seed), namespace)
    program = namespace["program"]
    rng = random.Random(seed)
    u, v = fields(2, (rng.choice((64, 301, 640)), rng.choice((33, 64, 120))))
    if rng.random() < 0.2:
        u = u.t().contiguous().t()
    with torch.no_grad():
        compiled = tofuse.compile(program, **small_caches)
        found = [compiled(u, v) for _ in range(2)][-1]
        expected, eager = program(u.double(), v.double()), program(u, v)
    for ours, exact, other in zip(found, expected, eager, strict=True):
        allowed = 2 * (other.double() - exact).abs().max() + 1e-5
        assert (ours.double() - exact).abs().max() <= allowed, random_program(seed)
