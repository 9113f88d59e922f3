"""`memory_budget` limits the saved bytes, with the same gradients."""

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.capture_only import compiled
from tofuse.errors import OptionError

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
WIDTH, LAYERS = 32, 3


def network(x, *weights):
    for w in weights:
        x = F.gelu(F.layer_norm(x @ w, (WIDTH,)))
    return x.sin()


def inputs():
    torch.manual_seed(0)
    weights = [torch.randn(WIDTH, WIDTH) / WIDTH**0.5 for _ in range(LAYERS)]
    return [t.requires_grad_() for t in (torch.randn(7, 13, WIDTH), *weights)]


def forward_report(fn, args, **options):
    return tofuse.explain(fn, **options)(*args).graphs[0]


def gradients(fn, args):
    torch.manual_seed(1)
    return torch.autograd.grad(fn(*args).square().sum(), args)


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.parametrize("budget", [0, 0.4, 1.0, 30_000])
def test_budget_limits_saved_bytes_and_keeps_gradients(budget, capture):
    args = inputs()
    free = forward_report(network, args, capture=capture)
    bound = forward_report(network, args, capture=capture, memory_budget=budget)
    allowed = budget * free.saved_bytes if budget <= 1 else budget
    assert bound.saved_bytes <= allowed and not bound.notes
    assert (bound.saved_bytes < free.saved_bytes) == (allowed < free.saved_bytes)
    fused = tofuse.compile(network, capture=capture, memory_budget=budget)
    for mine, theirs in zip(gradients(fused, args), gradients(network, args), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
def test_recomputation_reads_arguments_of_the_forward(capture):
    """The backward needs the biases and the first weight only for recomputation."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Linear(WIDTH, 3)
    )
    x, parameters = torch.randn(7, WIDTH), list(net.parameters())
    bound = forward_report(net, [x], capture=capture, memory_budget=0.0, strict=True)
    assert bound.saved_bytes == 0
    fused = tofuse.compile(net, capture=capture, memory_budget=0.0, strict=True)
    mine, theirs = (torch.autograd.grad(f(x).square().sum(), parameters) for f in (fused, net))
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_a_smaller_budget_recomputes_more():
    def eager_memories():
        for tenths in (10, 7, 5, 3, 1, 0):
            run, recorder = compiled(network, memory_budget=tenths / 10)
            run(*inputs())
            yield recorder.captured[0].eager_memory

    found = list(eager_memories())
    saved, recomputed = [m.our_saved_bytes for m in found], [m.recomputed_calls for m in found]
    assert saved == sorted(saved, reverse=True) and recomputed == sorted(recomputed)
    assert saved[-1] == 0 and len(set(saved)) > 3
    assert list(eager_memories()) == found


def test_a_note_names_what_cannot_be_recomputed():
    def f(x):
        return F.dropout(x.exp(), 0.5).sin()

    x = torch.randn(50, 40, requires_grad=True)
    report = forward_report(f, [x], memory_budget=0)
    assert report.saved_bytes == 16  # the seed
    assert "memory_budget allows 0 bytes, and 16 are saved" in report.notes[0]
    y = tofuse.compile(f, memory_budget=0)(x)
    (grad,) = torch.autograd.grad(y.sum(), x)
    kept = y != 0
    expected = torch.where(kept, (2 * x.exp()).cos() * 2 * x.exp(), 0.0)
    torch.testing.assert_close(grad, expected, rtol=1e-4, atol=1e-4)


def test_mutated_arguments_are_not_read_again():
    def f(x, w):
        y = ((x + 1) @ w).sin() @ w
        x.mul_(2)
        return y

    weight = torch.randn(8, 8, requires_grad=True)
    found: list[torch.Tensor | None] = []
    for run in (f, tofuse.compile(f, memory_budget=0)):
        weight.grad = None
        run(torch.arange(64.0).view(8, 8) / 64, weight).sum().backward()
        found.append(weight.grad)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("value", [-1, 1.5, 1000.5, float("nan"), True, "half"])
def test_invalid_budgets_raise(value):
    with pytest.raises(OptionError, match="memory_budget must be a fraction from 0"):
        tofuse.compile(network, memory_budget=value)


def composite(x, bias, residual, weight, shift):
    return F.layer_norm(F.dropout(x + bias, 0.1) + residual, (WIDTH,), weight, shift)


def primitive(x, bias, residual, weight, shift):
    h = F.dropout(x + bias, 0.1) + residual
    mean = h.mean(-1, keepdim=True)
    variance = (h - mean).square().mean(-1, keepdim=True)
    return (h - mean) / torch.sqrt(variance + 1e-5) * weight + shift


def rms(x, bias, residual, weight, shift):
    h = F.dropout(x + bias, 0.1) + residual
    return h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6) * weight


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.parametrize("fn", [composite, primitive, rms])
def test_a_norm_saves_the_seed_and_row_statistics(fn, capture):
    rows = 5 * 9
    x, residual = (torch.randn(5, 9, WIDTH, requires_grad=True) for _ in range(2))
    vectors = [torch.randn(WIDTH, requires_grad=True) for _ in range(3)]
    report = forward_report(fn, [x, vectors[0], residual, *vectors[1:]], capture=capture)
    assert report.saved_bytes <= 16 + 2 * 4 * rows
    assert report.eager_saved_bytes >= 4 * rows * WIDTH
