"""The hints `fuse` and `no_fuse`, the option `fuel`, and `bisect`."""

import subprocess
import sys
import warnings

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.eager import assert_as_eager
from tofuse.backends.cpu.llvm import elementwise
from tofuse.report.repro import write_fusion_repro

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def partly_unfused(x, w):
    y = torch.sin(x) * w
    with tofuse.no_fuse():
        z = torch.cos(y) + 1
        z = F.softmax(F.gelu(z), -1)
    return z * 2 + w


def regions(report, phase):
    return [set(r.ops) for r in report.phase(phase).regions]


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
def test_every_operator_under_no_fuse_is_a_separate_region(capture):
    x, w = torch.randn(40, 33, requires_grad=True), torch.randn(33, requires_grad=True)
    report = tofuse.explain(partly_unfused, capture=capture)(x, w)
    forward, backward = regions(report, "forward"), regions(report, "backward")
    # one region each of cos, add, gelu and softmax; the ops before and after them are fused
    assert len(forward) == 6
    assert {"sin", "mul"} in forward and {"cos"} in forward and {"add"} in forward
    assert sum("erf" in r for r in forward) == sum("exp" in r for r in forward) == 1
    assert not any("exp" in r and "sin" in r for r in backward)
    rules = {v.rule for v in report.verdicts if not v.fused}
    assert "kept separate by no_fuse" in rules
    # in the backward, too, only operators outside the hint are fused
    assert len(backward) >= 5
    assert_as_eager(partly_unfused, x, w, options={"capture": capture})


def test_a_hint_is_also_a_decorator_without_effect_in_eager():
    @tofuse.no_fuse()
    def inner(x):
        return x.sin().cos()

    x = torch.randn(50)
    assert torch.equal(inner(x), x.sin().cos())
    with tofuse.fuse():
        assert torch.equal(x + 1, x.add(1))
    assert len(tofuse.explain(lambda x: inner(x).exp())(x).kernels) == 3
    assert len(tofuse.explain(lambda x: x.sin().cos().exp())(x).kernels) == 1


@tofuse.no_fuse
def unfused_with_break(x):
    x = x.sin() + 1
    return x.cos() * x.sum().item()


def test_a_decorators_hint_holds_after_a_graph_break():
    def f(x):
        return unfused_with_break(x).exp() + 1

    x = torch.rand(30, requires_grad=True)
    report = tofuse.explain(f)(x)
    found = [set(r.ops) for g in report.graphs if g.phase == "forward" for r in g.regions]
    assert found.count({"sin"}) == found.count({"cos"}) == 1
    assert any(r >= {"exp", "add"} for r in found)
    assert_as_eager(f, x)


def break_inside_hint(x):
    with tofuse.fuse(), tofuse.no_fuse():
        x = x.sin() + 1
        x = x.cos() * x.sum().item()
    return x.exp() + 1


def break_in_a_loop(x):
    for _ in range(3):
        with tofuse.no_fuse():
            x = x.sin() * x.sum().item()
    return x


@pytest.mark.parametrize("f", [break_inside_hint, break_in_a_loop])
def test_a_function_with_a_graph_break_inside_a_hint_runs_in_eager(f):
    x = torch.rand(30)
    with pytest.warns(UserWarning, match="in eager") as caught:
        torch.testing.assert_close(tofuse.compile(f)(x), f(x), rtol=0, atol=0)
    assert {w.filename for w in caught} == {__file__}
    with pytest.warns(UserWarning, match="in eager"):
        report = tofuse.explain(f)(x)
    assert not report.graphs and "graph break at test_hints" in report.breaks[0]


def test_a_hint_holds_for_calls_in_a_function_that_runs_in_eager():
    def inner(x):
        return x.sin().cos()

    def f(x):
        with tofuse.no_fuse():
            return inner(x) * x.sum().item()

    x = torch.rand(30, requires_grad=True)
    with pytest.warns(UserWarning, match="in eager"):
        report = tofuse.explain(f)(x)
    assert [set(r.ops) for r in report.graphs[0].regions] == [{"sin"}, {"cos"}]


def test_a_hint_around_the_call_does_not_apply_to_the_program():
    x = torch.randn(50)
    with tofuse.no_fuse():
        assert len(tofuse.explain(lambda x: x.sin().cos())(x).kernels) == 1


def test_an_inner_hint_overrides_an_outer_one():
    def f(x):
        with tofuse.no_fuse():
            y = x.sin()
            with tofuse.fuse():
                y = y.cos().exp().sin()
            return y.cos()

    report = tofuse.explain(f)(torch.randn(50))
    assert regions(report, "inference") == [{"sin"}, {"cos", "exp"} | {"sin"}, {"cos"}]


def long_chain(x):
    for k in range(150):  # no two steps are equal, so they are no loop
        x = (x.abs() + 0.5 + k).sqrt() + x
    return x


def test_fuse_overrides_the_cost_model():
    def hinted(x):
        with tofuse.fuse():
            return long_chain(x)

    x = torch.randn(500)
    assert len(tofuse.explain(long_chain)(x).kernels) > 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = tofuse.explain(hinted)(x)
    assert len(report.kernels) == 1
    assert all(v.rule.endswith("as requested by fuse()") for v in report.verdicts)
    assert_as_eager(hinted, x)


def test_a_rejected_hint_is_a_warning_with_the_reason():
    def f(x, y):
        with tofuse.fuse():
            return (x.sin() @ y).relu()

    x = torch.randn(20, 20)
    with pytest.warns(UserWarning, match=r"inside fuse\(\): sin -> mm: .*library call"):
        report = tofuse.explain(f)(x, x)
    assert [v.fused for v in report.verdicts] == [False, False]
    assert all("although fuse() requests it" in v.rule for v in report.verdicts)


def test_a_hint_without_fuel_is_no_warning():
    def f(x):
        with tofuse.fuse():
            return x.sin().cos()

    report = tofuse.explain(f, fuel=0)(torch.randn(20))
    assert [v.rule for v in report.verdicts] == ["no fuel left, although fuse() requests it"]


def program(x):
    y = x.sin() * 2
    z = y.cos() + y
    return F.softmax(z.exp(), -1)


@pytest.mark.parametrize("grad", [False, True])
def test_fuel_counts_fusions_over_all_graphs(grad):
    x = torch.randn(30, 20, requires_grad=grad)
    everything = tofuse.explain(program)(x)
    names = [(v.producer, v.consumer) for v in everything.fusions]
    for fuel in (0, len(names) // 2, len(names) + 5):
        report = tofuse.explain(program, fuel=fuel)(x)
        assert [(v.producer, v.consumer) for v in report.fusions] == names[:fuel]
        assert len(report.kernels) == len(everything.kernels) + max(0, len(names) - fuel)
        if fuel < len(names):
            assert "no fuel left" in {v.rule for v in report.verdicts}
    assert_as_eager(program, x, options={"fuel": 3})


def test_fuel_must_be_a_number():
    for fuel in (-1, "3", True):
        with pytest.raises(tofuse.OptionError, match="fuel must be a number of fusions"):
            tofuse.compile(program, fuel=fuel)


@pytest.fixture
def planted(monkeypatch):
    """Make subtraction wrong in kernels that contain a cosine."""
    right = elementwise._RULES["sub"]

    def wrong(builder, x, y):
        fused = any(name == "cos" for name, _, _ in builder.f.math_calls)
        return (elementwise._RULES["add"] if fused else right)(builder, x, y)

    monkeypatch.setitem(elementwise._RULES, "sub", wrong)


def faulty(x):
    y = x.sin() * 2
    z = y.cos() - 3 * x  # here
    return F.softmax(z.exp(), -1)


def close_to(expected):
    return lambda result: torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
def test_bisect_finds_the_planted_fusion(planted, capture, tmp_path, capsys):
    x = torch.randn(30, 20)
    culprit = tofuse.bisect(
        faulty, [x], close_to(faulty(x)), repro=tmp_path, capture=capture, fullgraph=True
    )
    assert culprit is not None and culprit.verdict.loc is not None and culprit.repro is not None
    assert culprit.verdict.consumer == "sub" and culprit.verdict.loc.code.endswith("# here")
    assert {"cos", "sub"} <= set(culprit.ops)
    assert "sub" in capsys.readouterr().out
    # with one fusion fewer, the check passes
    fewer = tofuse.compile(faulty, fuel=culprit.number - 1, capture=capture)
    close_to(faulty(x))(fewer(x))
    text = culprit.repro.read_text()
    assert f"fuel={culprit.number}" in text and "sub" in text


def test_the_repro_of_a_fusion_runs(tmp_path):
    (graph,) = tofuse.explain(program)(torch.randn(30, 20)).graphs
    path = write_fusion_repro(graph.partition.graph, 2, "a -> b: fused", tmp_path)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True)
    assert "largest difference: tensor(" in done.stdout


def test_bisect_finds_a_fusion_of_the_backward(monkeypatch):
    x = torch.randn(30, 20, requires_grad=True)
    expected = torch.autograd.grad(program(x), x, torch.ones(30, 20))[0]
    right = elementwise._RULES["sub"]

    def wrong(builder, x, y):
        fused = any(name == "sin" for name, _, _ in builder.f.math_calls)
        return (elementwise._RULES["add"] if fused else right)(builder, x, y)

    def check(result):
        result.backward(torch.ones(30, 20))
        torch.testing.assert_close(x.grad, expected, rtol=1e-4, atol=1e-5)

    assert tofuse.bisect(program, [x], check) is None
    monkeypatch.setitem(elementwise._RULES, "sub", wrong)
    culprit = tofuse.bisect(program, [x], check)
    assert culprit is not None and {"sin", "sub"} <= set(culprit.ops)


def test_bisect_reports_a_failure_without_fusions():
    with pytest.raises(tofuse.VerifyError, match="without any fusion"):
        tofuse.bisect(program, [torch.randn(5)], lambda result: False)


def test_bisect_restores_mutated_inputs():
    def f(x):
        x.add_(1).sin_()
        return x * 2

    x = torch.randn(10)
    before, expected = x.clone(), f(x.clone())
    assert tofuse.bisect(f, [x], close_to(expected)) is None
    assert torch.equal(x, before)


def test_bisect_restores_parameters_and_buffers():
    """Neither gradients of parameters nor running statistics accumulate over the trials."""
    norm = torch.nn.BatchNorm1d(6)
    net = torch.nn.Sequential(torch.nn.Linear(6, 6), norm, torch.nn.GELU())
    x, held = torch.randn(8, 6), {k: t.clone() for k, t in net.state_dict().items()}
    seen = []

    def check(result):
        result.square().sum().backward()
        assert norm.weight.grad is not None
        seen.append((norm.weight.grad.clone(), net.get_buffer("1.running_mean").clone()))
        return len(seen) != 1  # only the program with all fusions fails

    assert tofuse.bisect(net, [x], check) is not None
    for found in seen[1:]:
        torch.testing.assert_close(found, seen[0])
    assert norm.weight.grad is None
    torch.testing.assert_close(net.state_dict(), held, rtol=0, atol=0)


def test_a_check_of_bisect_may_return_a_tensor():
    with pytest.raises(tofuse.VerifyError, match="without any fusion"):
        tofuse.bisect(program, [torch.randn(5)], lambda result: torch.tensor(False))
    assert tofuse.bisect(program, [torch.randn(5)], lambda result: None) is None


def test_bisect_rejects_invalid_arguments():
    with pytest.raises(TypeError, match=r"inputs in a list, such as \[x\], not a Tensor"):
        tofuse.bisect(program, torch.randn(5), bool)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="function that checks a result, not None"):
        tofuse.bisect(program, [torch.randn(5)], None)  # type: ignore[arg-type]


@pytest.mark.parametrize("hint", [tofuse.fuse, tofuse.no_fuse])
def test_a_hint_decorates_functions_alone(hint):
    with pytest.raises(TypeError, match="decorates a function, not 3"):
        hint(3)
