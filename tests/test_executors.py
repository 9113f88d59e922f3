"""Registered executors run in order of preference, and the report gives the reason."""

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.eager import assert_as_eager
from tofuse.errors import OptionError, TofuseError

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.fixture
def registered():
    """Register executors, and unregister them after the test."""
    names: list[str] = []

    def register(name, **parts):
        tofuse.register_executor(name, **parts)
        names.append(name)

    yield register
    for name in names:
        tofuse.unregister_executor(name)


def project(x, w):
    return torch.softmax(x @ w, -1) * 2


def test_an_executor_replaces_pytorchs_operator(registered):
    calls = []

    def product(a, b):
        calls.append(tuple(a.shape))
        return (a[:, :, None] * b).sum(1)

    registered("mine", ops=["aten.mm"], run=product)
    x, w = torch.randn(6, 5), torch.randn(5, 7)
    compiled = tofuse.compile(project, executors=("mine", "llvm", "aten"))
    torch.testing.assert_close(compiled(x, w), project(x, w))
    assert calls == [(6, 5)]
    report = tofuse.explain(project, executors="mine,llvm")(x, w)
    by_name = {r.name: r for r in report.regions}
    assert by_name["mm_0"].executor == "mine" and "accepts aten.mm" in by_name["mm_0"].why
    assert [r.executor for r in report.regions] == ["mine", "llvm"]
    torch._dynamo.reset()
    torch.testing.assert_close(tofuse.compile(project)(x, w), project(x, w))
    assert len(calls) == 2, "it is not used by default"
    large = torch.randn(100, 5), torch.randn(5, 200)
    torch._dynamo.reset()
    torch.testing.assert_close(
        tofuse.compile(project, executors="mine,llvm,aten")(*large), project(*large)
    )
    assert calls[2:] == [(100, 5)], "nor does PyTorch's `out=` form take its place"


def test_an_executor_that_returns_too_few_elements_is_an_error(registered):
    def half(x, *args):
        return F.avg_pool2d(x, 2)[..., :1]

    registered("short", ops=["aten.avg_pool2d"], run=half)
    compiled = tofuse.compile(
        lambda x: F.avg_pool2d(x, 2) + 1, dynamic=True, executors="short,llvm,aten"
    )
    with pytest.raises((TofuseError, RuntimeError), match="returned a tensor of shape"):
        compiled(torch.randn(2, 3, 64, 64))


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
def test_operators_of_executors_before_our_kernels_are_not_decomposed(registered, capture):
    calls = []

    def run(x, dim, half_to_float):
        calls.append(dim)
        return (x - x.logsumexp(dim, keepdim=True)).exp()

    registered("mine", ops=["aten._softmax.default"], run=run)
    x, w = torch.randn(6, 5), torch.randn(5, 7)
    for order, count in ((("mine", "llvm"), 1), (("llvm", "mine"), 1)):
        torch._dynamo.reset()
        compiled = tofuse.compile(project, executors=order, capture=capture)
        torch.testing.assert_close(compiled(x, w), project(x, w))
        assert len(calls) == count, "after our kernels, softmax is decomposed"


def test_gradients_flow_through_an_executors_operator(registered):
    registered("mine", ops=["aten._softmax"], run=torch.ops.aten._softmax.default)
    x, w = (torch.randn(6, 6, requires_grad=True) for _ in range(2))
    report = tofuse.explain(project, executors=("mine", "llvm"))(x, w)
    assert "mine" in {r.executor for r in report.regions if r.phase == "forward"}
    compiled = tofuse.compile(project, executors=("mine", "llvm"))
    got = torch.autograd.grad(compiled(x, w).sum(), (x, w))
    torch.testing.assert_close(got, torch.autograd.grad(project(x, w).sum(), (x, w)))


def test_the_next_executor_runs_what_a_check_rejects(registered):
    calls, reason = [], "it does not list large sizes"

    def run(x, dim, half_to_float):
        calls.append(x.shape)
        return torch.softmax(x, dim)

    registered(
        "mine",
        ops=["aten._softmax", "aten.mm"],
        run=run,
        check=lambda r: (r.inputs[0].shape[0] < 10 and r.target != "aten.mm.default") or reason,
    )
    x, w = torch.randn(50, 5), torch.randn(5, 7)
    report = tofuse.explain(project, executors=("mine", "llvm"))(x, w)
    assert [r.executor for r in report.regions] == ["aten", "llvm"] and not calls
    assert report.regions[0].why == f"mine rejects it: {reason}"
    torch._dynamo.reset()
    report = tofuse.explain(project, executors=("mine", "llvm"))(x[:4], w)
    assert [r.executor for r in report.regions] == ["aten", "mine", "llvm"] and calls
    report = tofuse.explain(project, executors=("mine", "llvm"), dynamic=True)(x[:4], w)
    assert "check does not support symbolic sizes" in report.regions[0].why


def test_requests_describe_the_operands(registered):
    seen = []

    def check(request):
        seen.append(request)
        return True

    registered("mine", ops=["aten.mm"], run=torch.mm, check=check)
    tofuse.compile(torch.mm, executors=("llvm", "mine"))(
        torch.ones(2, 3, dtype=torch.bfloat16), torch.ones(3, 4, dtype=torch.bfloat16)
    )
    assert seen[0].target == "aten.mm.default"
    assert [(t.shape, t.dtype, t.device) for t in seen[0].inputs] == [
        ((2, 3), "bfloat16", "cpu"),
        ((3, 4), "bfloat16", "cpu"),
    ]


def test_the_first_executor_wins_unless_it_is_expensive(registered):
    registered("first", ops=["aten.mm"], run=torch.mm, cost=lambda r: 0.5)
    registered("second", ops=["aten.mm"], run=torch.mm)
    registered("expensive", ops=["aten.mm"], run=torch.mm, cost=lambda r: 1e9)
    x = torch.randn(4, 4)

    def region_with(*order):
        (region,) = tofuse.explain(torch.mm, executors=order)(x, x).regions
        return region

    assert region_with("first", "second", "llvm").executor == "first"
    assert region_with("first", "second", "llvm").predicted_us == 0.5
    assert region_with("second", "first", "llvm").executor == "second"
    assert region_with("expensive", "llvm").executor == "aten"
    assert "expensive predicts 1000000000.0 us" in region_with("expensive").why


def test_a_result_of_the_wrong_type_is_an_error(registered):
    registered("short", ops=["aten.mm"], run=lambda a, b: torch.ones(1))
    with pytest.raises(
        TofuseError, match=r"executor 'short' returned torch.float32 \(1,\) for aten.mm"
    ):
        tofuse.compile(project, executors=("short", "llvm"))(torch.ones(2, 2), torch.ones(2, 2))


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda a: a, "'rude' returned an argument's memory"),
        (lambda a: a.view_as(a), "'rude' returned an argument's memory"),
        (lambda a: a.relu_(), "'rude' writes into an argument"),
    ],
)
def test_an_executor_that_mutates_or_returns_arguments_is_an_error(registered, run, message):
    registered("rude", ops=["aten.relu"], run=run)
    with pytest.raises(TofuseError, match=message):
        tofuse.compile(torch.relu, executors=("rude", "llvm"))(torch.randn(5))


def test_an_error_of_an_executor_names_it(registered):
    def run(a, b):
        raise KeyError("mine alone")

    registered("failing", ops=["aten.mm"], run=run)
    with pytest.raises(KeyError, match="mine alone") as caught:
        tofuse.compile(project, executors=("failing", "llvm"))(torch.ones(2, 2), torch.ones(2, 2))
    notes = getattr(caught.value, "__notes__", ["executor 'failing'"])  # new in Python 3.11
    assert any("executor 'failing'" in note for note in notes)


def test_bisect_reports_a_faulty_executor(registered):
    registered("faulty", ops=["aten.mm"], run=lambda a, b: a @ b * 2)
    inputs = [torch.randn(4, 4), torch.randn(4, 4)]
    expected = project(*inputs)

    def check(result):
        torch.testing.assert_close(result, expected)

    with pytest.raises(tofuse.VerifyError, match="passes without 'faulty'"):
        tofuse.bisect(project, inputs, check, executors=("faulty", "llvm"))


def test_one_executor_runs_several_calls_of_one_operator(registered):
    registered("mine", ops=["aten.mm"], run=torch.mm)
    a, b, c = torch.randn(5, 6), torch.randn(6, 7), torch.randn(7, 8)
    compiled = tofuse.compile(lambda a, b, c: (a @ b).relu() @ c, executors=("mine", "llvm"))
    torch.testing.assert_close(compiled(a, b, c), (a @ b).relu() @ c)


def test_results_of_symbolic_size_are_checked_at_run_time(registered):
    registered("short", ops=["aten.mm"], run=lambda a, b: torch.mm(a, b)[:1])
    compiled = tofuse.compile(project, executors=("short", "llvm"), dynamic=True)
    with pytest.raises(
        TofuseError, match=r"returned torch.float32 \(1, 7\) for .* returns f32\[6,7\]"
    ):
        compiled(torch.randn(6, 5), torch.randn(5, 7))


def test_the_warning_names_a_check_or_cost_that_raises(registered):
    x = torch.randn(4, 4)
    registered("checks", ops=["aten.mm"], run=torch.mm, check=lambda r: 1 / 0)
    with pytest.warns(UserWarning, match=r"'checks': its check failed for aten.mm.default\(f"):
        tofuse.compile(torch.mm, executors=("checks", "llvm"))(x, x)
    registered("costs", ops=["aten.mm"], run=torch.mm, cost=lambda r: "little")
    with pytest.warns(UserWarning, match=r"'costs': its cost failed .* ValueError"):
        tofuse.compile(torch.mm, executors=("costs", "llvm"))(x, x)


def test_only_aten_runs_every_operator_through_pytorch():
    net = torch.nn.Sequential(
        torch.nn.Linear(6, 6), torch.nn.GELU(), torch.nn.LayerNorm(6), torch.nn.Dropout(0.3)
    )
    x = torch.randn(4, 6, requires_grad=True)
    report = tofuse.explain(net, executors=("aten",))(x)
    assert not report.kernels and {r.executor for r in report.regions} == {"aten"}
    assert "native_layer_norm" in " ".join(c.name for c in report.library_calls)
    compiled = tofuse.compile(net, executors="aten")
    torch.manual_seed(3)
    got = compiled(x)
    torch.manual_seed(3)
    assert torch.equal(got, net(x)), "the same operators, the same random numbers"
    assert_as_eager(
        lambda x: F.softmax(x.T + 1, -1)[1:].cumsum(0),
        torch.randn(3, 5),
        options={"executors": "aten"},
    )


def test_results_of_pytorchs_operators_have_eagers_strides():
    x = torch.randn(3, 4).t()
    for function in (F.logsigmoid, torch.logical_not, lambda x: torch.logaddexp(x, x[:, :1])):
        compiled = tofuse.compile(function, executors=("aten",))
        assert compiled(x).stride() == function(x).stride()


def test_unknown_executors_and_invalid_registrations_are_errors(registered, monkeypatch):
    with pytest.raises(OptionError, match="no executor 'lvm'; did you mean 'llvm'"):
        tofuse.compile(torch.sin, executors=("lvm",))
    with pytest.raises(OptionError, match="is repeated"):
        tofuse.compile(torch.sin, executors=("llvm", "llvm"))
    with pytest.raises(OptionError, match="executors must be a tuple of names"):
        tofuse.compile(torch.sin, executors=3)
    with pytest.raises(OptionError, match="no executor 'absent'"):
        monkeypatch.setenv("TOFUSE_EXECUTORS", "absent")
        tofuse.compile(torch.sin)
    with pytest.raises(OptionError, match="the executor 'llvm' already exists"):
        registered("llvm", ops=["aten.mm"], run=torch.mm)
    with pytest.raises(OptionError, match="already"):
        registered("triton", ops=["aten.mm"], run=torch.mm)
    with pytest.raises(OptionError, match="'llvm' means our kernels on every device"):
        tofuse.compile(torch.sin, executors=("triton", "aten"))(torch.ones(2))
    with pytest.raises(OptionError, match="identifier, not 'a b'"):
        registered("a b", ops=["aten.mm"], run=torch.mm)
    for ops in ([], "aten.mm", ["mm"], [3]):
        with pytest.raises(OptionError, match="ops must be names of operators"):
            registered("mine", ops=ops, run=torch.mm)
    for ops in (["aten.mmm"], ["torch.mm"], ["aten.mm.none"]):
        with pytest.raises(OptionError, match=f"no operator '{ops[0]}'; did you mean 'aten.mm'"):
            registered("mine", ops=ops, run=torch.mm)
    with pytest.raises(OptionError, match="run must be a function, not 3"):
        registered("mine", ops=["aten.mm"], run=3)
    with pytest.raises(OptionError, match="no registered executor 'mine'"):
        tofuse.unregister_executor("mine")
