"""Compilation takes linear time, is deterministic, and builds each kernel once."""

import time

import pytest
import torch
from torch import nn

import tofuse
from tests.support.eager import assert_as_eager, copies
from tofuse.driver import load_kernels

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def ladder(a, b, depth=60):
    for _ in range(depth):
        a, b = a + b, a * b
    return a, b


def chain(x, length):
    for _ in range(length // 4):
        x = ((x + 1) * 0.5).sin() - 0.1
    return x


def compile_ms(fn, *args):
    torch._dynamo.reset()
    return tofuse.explain(fn)(*args).compile_ms


@pytest.mark.parametrize("grad", [False, True])
def test_ladder_compiles_in_linear_time(grad):
    """pytorch 148073: every value is used twice, so its expression tree has 2^60 leaves."""
    a, b = (
        (torch.rand(100) * 0.1).requires_grad_(grad),
        (torch.rand(100) * 0.1).requires_grad_(grad),
    )
    assert_as_eager(ladder, a, b, calls=1)
    half = min(compile_ms(lambda a, b: ladder(a, b, 30), a, b) for _ in range(2))
    whole = min(compile_ms(lambda a, b: ladder(a, b, 60), a, b) for _ in range(2))
    assert whole < 5 * half + 100


def test_long_pointwise_chain_compiles():
    """pytorch 148073: no recursion error, and within 30 seconds."""
    start = time.process_time()
    compiled = assert_as_eager(lambda x: chain(x, 2000), torch.randn(1000), calls=1)
    assert time.process_time() - start < 30
    assert compiled is not None


def test_backward_of_long_chain_compiles():
    """pytorch 148073"""
    x = torch.randn(100, requires_grad=True)
    assert_as_eager(lambda x: chain(x, 400), x, calls=1)


def scan(a, b):
    """Return the scan b[t] += a[t] * b[t - 1] of all rows, by recursive doubling."""
    step = 1
    while step < b.shape[1]:
        b = torch.cat([b[:, :step], b[:, step:] + a[:, step:] * b[:, :-step]], 1)
        a = torch.cat([a[:, :step], a[:, step:] * a[:, :-step]], 1)
        step *= 2
    return b


def test_recursive_doubling_scan_compiles():
    """Each step reads the previous one twice, so the expression tree has 2^4 leaves."""
    a, b = (torch.rand(2, 12, 8, requires_grad=True) for _ in range(2))
    start = time.process_time()
    assert_as_eager(scan, a, b, calls=1)
    assert time.process_time() - start < 20


def layers(count):
    torch.manual_seed(0)
    return nn.Sequential(*(m for _ in range(count) for m in (nn.Linear(32, 32), nn.ReLU())))


def test_layers_compile_in_linear_time_and_kernels_once(monkeypatch):
    """thunder 1490, 2700"""
    loaded, load_text = [], load_kernels.load_text

    def counted(text, names, kept):
        loaded.append(text)
        return load_text(text, names, kept)

    monkeypatch.setattr(load_kernels, "load_text", counted)
    x = torch.randn(16, 32, requires_grad=True)
    compile_ms(layers(2), x)  # warm
    loaded.clear()
    fifteen = min(compile_ms(layers(15), x) for _ in range(2))
    thirty = min(compile_ms(layers(30), x) for _ in range(2))
    assert thirty < 4 * fifteen + 100
    loaded.clear()
    torch._dynamo.reset()
    report = tofuse.explain(layers(30))(x)
    assert len(report.forward.kernels) == len(report.backward.kernels) == 30
    assert len(loaded) <= 6


def program(x, y):
    a = (x * 2 + y).softmax(-1)
    b = (x.sum(0) * y[0]).relu()
    return a, b, torch.cat([a, y]).mean(1)


def reordered(x, y):
    b = (x.sum(0) * y[0]).relu()
    a = (x * 2 + y).softmax(-1)
    return a, b, torch.cat([a, y]).mean(1)


def decisions(report):
    """Return the parts of a report that do not depend on names and lines."""
    verdicts = [(v.fused, v.rule, v.bytes_saved) for v in report.verdicts]
    return verdicts, [sorted(r.ops) for r in report.regions]


def test_compilation_is_deterministic():
    """pytorch 142316"""
    args = torch.randn(32, 64, requires_grad=True), torch.randn(32, 64, requires_grad=True)
    reports, results = [], []
    for _ in range(2):
        torch._dynamo.reset()
        reports.append(tofuse.explain(program)(*args))
        results.append(tofuse.compile(program)(*args))
    first, second = reports
    assert [k.source for k in first.kernels] == [k.source for k in second.kernels]
    assert first.verdicts == second.verdicts
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_order_of_independent_statements_does_not_change_fusion():
    """csarofeen 1859"""
    args = torch.randn(32, 64), torch.randn(32, 64)
    one, other = (decisions(tofuse.explain(f)(*copies(args))) for f in (program, reordered))
    assert sorted(one[0]) == sorted(other[0])
    assert sorted(one[1]) == sorted(other[1])
