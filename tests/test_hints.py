"""`fuse` and `no_fuse` around the user's code, `fuel`, and the search for a bad fusion."""

import subprocess
import sys
import warnings

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.eager import assert_as_eager
from tofuse.backends.llvm import elementwise
from tofuse.report.repro import write_fusion_repro

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def apart(x, w):
    y = torch.sin(x) * w
    with tofuse.no_fuse():
        z = torch.cos(y) + 1
        z = F.softmax(F.gelu(z), -1)
    return z * 2 + w


def regions(report, phase):
    return [set(r.ops) for r in report.phase(phase).regions]


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
def test_every_operator_under_no_fuse_is_alone(capture):
    x, w = torch.randn(40, 33, requires_grad=True), torch.randn(33, requires_grad=True)
    report = tofuse.explain(apart, capture=capture)(x, w)
    forward, backward = regions(report, "forward"), regions(report, "backward")
    # cos, add, gelu and softmax each; what stands before and behind them is fused
    assert len(forward) == 6
    assert {"sin", "mul"} in forward and {"cos"} in forward and {"add"} in forward
    assert sum("erf" in r for r in forward) == sum("exp" in r for r in forward) == 1
    assert not any("exp" in r and "sin" in r for r in backward)
    rules = {v.rule for v in report.verdicts if not v.fused}
    assert "kept apart by no_fuse" in rules
    # of the backward only the operators outside the hint are fused with others
    assert len(backward) >= 5
    assert_as_eager(apart, x, w, options={"capture": capture})


def test_a_hint_is_also_a_decorator_and_does_nothing_in_eager():
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
def measured(x):
    x = x.sin() + 1
    return x.cos() * x.sum().item()


def broken_inside(x):
    with tofuse.fuse(), tofuse.no_fuse():
        x = x.sin() + 1
        x = x.cos() * x.sum().item()
    return x.exp() + 1


@pytest.mark.parametrize("f", [broken_inside, lambda x: measured(x).exp() + 1])
def test_a_hint_stays_in_force_behind_a_graph_break(f):
    x = torch.rand(30, requires_grad=True)
    report = tofuse.explain(f)(x)
    found = [set(r.ops) for g in report.graphs if g.phase == "forward" for r in g.regions]
    assert found.count({"sin"}) == found.count({"cos"}) == 1
    assert any(r >= {"exp", "add"} for r in found)
    assert_as_eager(f, x)


def test_a_function_that_is_not_compiled_runs_its_hints():
    def f(x):
        for _ in range(3):
            with tofuse.no_fuse():
                x = x.sin() * x.sum().item()
        return x

    x = torch.rand(30)
    torch.testing.assert_close(tofuse.compile(f)(x), f(x))


def test_a_hint_around_the_call_is_not_one_for_the_program():
    x = torch.randn(50)
    with tofuse.no_fuse():
        assert len(tofuse.explain(lambda x: x.sin().cos())(x).kernels) == 1


def test_the_inner_hint_holds():
    def f(x):
        with tofuse.no_fuse():
            y = x.sin()
            with tofuse.fuse():
                y = y.cos().exp().sin()
            return y.cos()

    report = tofuse.explain(f)(torch.randn(50))
    assert regions(report, "inference") == [{"sin"}, {"cos", "exp"} | {"sin"}, {"cos"}]


def long_chain(x):
    for _ in range(150):
        x = (x.abs() + 0.5).sqrt() + x
    return x


def test_fuse_goes_past_what_the_cost_model_wants():
    def asked(x):
        with tofuse.fuse():
            return long_chain(x)

    x = torch.randn(500)
    assert len(tofuse.explain(long_chain)(x).kernels) > 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = tofuse.explain(asked)(x)
    assert len(report.kernels) == 1
    assert all(v.rule.endswith("as fuse asks") for v in report.verdicts)
    assert_as_eager(asked, x)


def test_a_refused_wish_is_a_warning_with_the_reason():
    def f(x, y):
        with tofuse.fuse():
            return (x.sin() @ y).relu()

    x = torch.randn(20, 20)
    with pytest.warns(UserWarning, match=r"fuse\(\) asks for: sin -> mm: .*library call"):
        report = tofuse.explain(f)(x, x)
    assert [v.fused for v in report.verdicts] == [False, False]
    assert all("though fuse asks for it" in v.rule for v in report.verdicts)


def test_a_wish_without_fuel_is_no_warning():
    def f(x):
        with tofuse.fuse():
            return x.sin().cos()

    report = tofuse.explain(f, fuel=0)(torch.randn(20))
    assert [v.rule for v in report.verdicts] == ["no fuel left, though fuse asks for it"]


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


def test_fuel_that_is_no_number_is_refused():
    for fuel in (-1, "3", True):
        with pytest.raises(tofuse.OptionError, match="fuel is a number of fusions"):
            tofuse.compile(program, fuel=fuel)


@pytest.fixture
def planted(monkeypatch):
    """Subtraction is wrong in kernels that have taken a cosine before."""
    right = elementwise._RULES["sub"]

    def wrong(f, args, shape):
        fused = any(name == "cos" for name, _, _ in f.math)
        return elementwise._RULES["add"](f, args, shape) if fused else right(f, args, shape)

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
    # one fusion less and the check passes
    fewer = tofuse.compile(faulty, fuel=culprit.number - 1, capture=capture)
    close_to(faulty(x))(fewer(x))
    text = culprit.repro.read_text()
    assert f"fuel={culprit.number}" in text and "sub" in text


def test_the_repro_of_a_fusion_runs(tmp_path):
    (graph,) = tofuse.explain(program)(torch.randn(30, 20)).graphs
    path = write_fusion_repro(graph.graph, 2, "a -> b: fused", tmp_path)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True)
    assert "largest difference: tensor(" in done.stdout


def test_bisect_reaches_into_the_backward(monkeypatch):
    x = torch.randn(30, 20, requires_grad=True)
    expected = torch.autograd.grad(program(x), x, torch.ones(30, 20))[0]
    right = elementwise._RULES["sub"]

    def wrong(f, args, shape):
        fused = any(name == "sin" for name, _, _ in f.math)
        return elementwise._RULES["add"](f, args, shape) if fused else right(f, args, shape)

    def check(result):
        result.backward(torch.ones(30, 20))
        torch.testing.assert_close(x.grad, expected, rtol=1e-4, atol=1e-5)

    assert tofuse.bisect(program, [x], check) is None
    monkeypatch.setitem(elementwise._RULES, "sub", wrong)
    culprit = tofuse.bisect(program, [x], check)
    assert culprit is not None and {"sin", "sub"} <= set(culprit.ops)


def test_bisect_says_when_no_fusion_is_to_blame():
    with pytest.raises(tofuse.VerifyError, match="without any fusion"):
        tofuse.bisect(program, [torch.randn(5)], lambda result: False)


def test_bisect_restores_what_the_program_writes():
    def f(x):
        x.add_(1).sin_()
        return x * 2

    x = torch.randn(10)
    before, expected = x.clone(), f(x.clone())
    assert tofuse.bisect(f, [x], close_to(expected)) is None
    assert torch.equal(x, before)


def test_bisect_restores_what_a_module_holds():
    """Gradients of parameters do not add up from trial to trial, nor do running statistics."""
    norm = torch.nn.BatchNorm1d(6)
    net = torch.nn.Sequential(torch.nn.Linear(6, 6), norm, torch.nn.GELU())
    x, held = torch.randn(8, 6), {k: t.clone() for k, t in net.state_dict().items()}
    seen = []

    def check(result):
        result.square().sum().backward()
        assert norm.weight.grad is not None
        seen.append((norm.weight.grad.clone(), net.get_buffer("1.running_mean").clone()))
        return len(seen) != 1  # as if the kernels with all fusions were wrong

    assert tofuse.bisect(net, [x], check) is not None
    for found in seen[1:]:
        torch.testing.assert_close(found, seen[0])
    assert norm.weight.grad is None
    torch.testing.assert_close(net.state_dict(), held, rtol=0, atol=0)


def test_bisect_takes_a_tensor_for_an_answer():
    with pytest.raises(tofuse.VerifyError, match="without any fusion"):
        tofuse.bisect(program, [torch.randn(5)], lambda result: torch.tensor(False))
    assert tofuse.bisect(program, [torch.randn(5)], lambda result: None) is None


def test_bisect_refuses_what_it_cannot_call():
    with pytest.raises(TypeError, match=r"inputs in a list, such as \[x\], not a Tensor"):
        tofuse.bisect(program, torch.randn(5), bool)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="function that checks a result, not None"):
        tofuse.bisect(program, [torch.randn(5)], None)  # type: ignore[arg-type]
