"""The lowering cache does not change the graph, and saves work for repeated calls."""

import pytest
import torch
import torch.nn.functional as F

import tofuse
from benchmarks import programs
from tofuse.capture.lower.lowering_cache import LoweringCache
from tofuse.driver import compile_graph
from tofuse.ir.graph.print import show_graph
from tofuse.passes.rewrite import Rewriter

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def nearly_equal_calls(x, y):
    """Calls that differ in one thing only: a constant, its type, an operand twice, a dtype."""
    a = (x * 0.0) + (x * -0.0) + (x * 0) + (x * 1) + (x * True) + (x * 1.0)
    b = (x * x) + (x * y) + (y * y) + (y * x)
    c = torch.full((4, 6), 2.0) + torch.full((4, 6), 2) + torch.full((4, 6), 3.0)
    d = x.to(torch.float64).sum(0) + y.to(torch.float64).sum(0) + x.sum(1, keepdim=True)
    e = [p.var(0, unbiased=False) for p in (*x.split(2), *y.split(2))]
    return a, b + c, d, e, torch.cat([x, y]), torch.cat([y, x]), torch.cat([x, x])


def repeated_layers(x, y):
    for _ in range(4):
        x = F.layer_norm(torch.tanh(x) * y.sigmoid(), (6,)) + x
    return x


def captured_graphs(fn, *args):
    """The text of every captured graph."""
    torch._dynamo.reset()
    found, convert = [], compile_graph.convert

    def recording_convert(*a):
        captured = convert(*a)
        found.append(show_graph(captured.graph))
        return captured

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compile_graph, "convert", recording_convert)
        tofuse.explain(fn)(*args)
    return found


@pytest.mark.broad(4)
@pytest.mark.parametrize(
    "fn, dynamic", [(nearly_equal_calls, False), (repeated_layers, False), (repeated_layers, True)]
)
@pytest.mark.parametrize("grad", [False, True])
def test_cached_graph_equals_the_uncached_one(fn, grad, dynamic, monkeypatch):
    args = [torch.randn(4, 6).requires_grad_(grad) for _ in range(2)]
    if dynamic:
        for x in args:
            torch._dynamo.mark_dynamic(x, 0)
    cached = captured_graphs(fn, *args)
    monkeypatch.setattr(LoweringCache, "key", lambda self, call, operands: None)
    assert cached == captured_graphs(fn, *args)


def count_work(pieces, monkeypatch):
    """Count the stored calls, and the ops that passes emit, for a split into so many slices."""
    counts = {"stored": 0, "emitted": 0}
    store, emit = LoweringCache.store, Rewriter.emit
    monkeypatch.setattr(
        LoweringCache, "store", lambda *a: counts.update(stored=counts["stored"] + 1) or store(*a)
    )
    monkeypatch.setattr(
        Rewriter, "emit", lambda *a: counts.update(emitted=counts["emitted"] + 1) or emit(*a)
    )
    x, weight, bias = torch.rand(pieces * 8 * 32), torch.rand(1, 32), torch.rand(1)
    torch._dynamo.reset()
    tofuse.explain(programs.split_stack_weights)(x, weight, bias, 8)
    monkeypatch.undo()
    return counts


def test_more_branches_are_replayed_from_the_cache(monkeypatch):
    few, many = count_work(8, monkeypatch), count_work(32, monkeypatch)
    assert few["stored"] > 0
    assert many["stored"] == few["stored"]
    assert many["emitted"] <= few["emitted"] + 2 * 24  # the 24 slices and their concat
