"""Compilation does linear work, is deterministic, and builds each kernel once."""

import pytest
import torch

import tofuse
from benchmarks.long_programs import chain, ladder, layers, scan
from tests.support.eager import assert_as_eager, copies
from tofuse.backends.cpu.llvm.load import CODE

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def source_lines(fn, *args):
    """Return the number of lines of all kernels of a program."""
    torch._dynamo.reset()
    return sum(len(k.source.splitlines()) for k in tofuse.explain(fn)(*args).kernels)


@pytest.mark.parametrize("grad", [False, True])
def test_kernels_of_a_ladder_grow_linearly(grad):
    """pytorch 148073: every value is used twice, so its expression tree has 2^60 leaves."""
    args = [(torch.rand(100) * 0.1).requires_grad_(grad) for _ in range(2)]
    assert_as_eager(lambda a, b: ladder(a, b, 60), *args, calls=1)
    half = source_lines(lambda a, b: ladder(a, b, 30), *args)
    assert source_lines(lambda a, b: ladder(a, b, 60), *args) < 4 * half  # unrolling may differ


def test_long_pointwise_chain_compiles():
    """pytorch 148073: no recursion error, and only a few kernels."""
    x = torch.randn(1000)
    assert_as_eager(lambda x: chain(x, 1200), x, calls=1)
    assert len(tofuse.explain(lambda x: chain(x, 1200))(x).kernels) <= 5


def test_backward_of_long_chain_compiles():
    """pytorch 148073"""
    x = torch.randn(100, requires_grad=True)
    assert_as_eager(lambda x: chain(x, 250), x, calls=1)


def test_recursive_doubling_scan_compiles():
    """Each step reads the previous one twice, so the expression tree has 2^4 leaves."""
    lines = []
    for length in (12, 24):
        args = [torch.rand(2, length, 8, requires_grad=True) for _ in range(2)]
        assert_as_eager(scan, *args, calls=1)
        lines.append(source_lines(scan, *args))
    assert lines[1] < 4 * lines[0]  # one more step


def test_kernels_of_equal_layers_are_loaded_once(monkeypatch):
    """thunder 1490, 2700"""
    loaded, load_text = [], CODE.load_text

    def counted(text, names, kept):
        loaded.append(text)
        return load_text(text, names, kept)

    monkeypatch.setattr(CODE, "load_text", counted)
    x = torch.randn(16, 32, requires_grad=True)
    report = tofuse.explain(layers(30), precision="eager")(x)  # products are library calls
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
