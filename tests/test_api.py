"""The public functions: targets and options of compile, errors, reports."""

import functools
import subprocess
import sys
from collections import namedtuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

import tofuse
from tests.support.eager import assert_as_eager
from tofuse.errors import OptionError

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def assert_same(compiled, function, *args):
    torch.testing.assert_close(compiled(*args), function(*args))


# -- functions -----------------------------------------------------------------------------------


def test_decorator_with_options():
    @tofuse.compile(dynamic=True)
    def wave(x):
        return x.sin() + 1

    assert wave.__name__ == "wave"
    assert_same(wave, lambda x: x.sin() + 1, torch.randn(5))
    with pytest.raises(OptionError, match="colour"):
        tofuse.compile(colour=1)


def test_functions_keep_their_arguments_and_containers():
    Pair = namedtuple("Pair", "a b")

    def f(given, scale=2.0, *, pieces):
        first = [given["x"] * scale, (pieces[0] + 1, None)]
        return {"first": first, "pair": Pair(pieces[1].sin(), 3), "name": "text"}

    given, pieces = {"x": torch.ones(3)}, [torch.ones(2), torch.ones(4)]
    compiled = tofuse.compile(f)
    for scale in (2.0, 5):
        got, expected = compiled(given, scale, pieces=pieces), f(given, scale, pieces=pieces)
        assert isinstance(got["pair"], Pair) and got["name"] == "text" and got["pair"].b == 3
        torch.testing.assert_close(got["first"], expected["first"])
        torch.testing.assert_close(got["pair"].a, expected["pair"].a)
    assert compiled.__name__ == "f"


def test_methods_partials_callables_and_builtins():
    class Scaler:
        def __init__(self):
            self.weight = torch.full((3,), 2.0)

        def method(self, x):
            return x * self.weight

        def __call__(self, x):
            return x + self.weight

    scaler, x = Scaler(), torch.ones(3)
    assert torch.equal(tofuse.compile(scaler.method)(x), x * 2)
    assert torch.equal(tofuse.compile(scaler)(x), x + 2)
    assert torch.equal(tofuse.compile(functools.partial(scaler.method))(x), x * 2)
    torch.testing.assert_close(tofuse.compile(torch.sin)(x), x.sin())
    torch.testing.assert_close(tofuse.compile(F.gelu)(x), F.gelu(x))


def test_changed_globals_and_closures():
    weight, state = torch.ones(3), {"factor": 2.0}
    compiled = tofuse.compile(lambda x: x * weight * state["factor"])
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))
    weight.fill_(3)
    state["factor"] = 4.0
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 12.0))


def test_modules_built_inside_functions():
    def f(x):
        torch.manual_seed(0)
        return nn.Linear(4, 3)(x).relu()

    assert_same(tofuse.compile(f), f, torch.randn(2, 4))


@pytest.mark.filterwarnings("ignore:Graph break")
def test_data_dependent_shapes():
    programs = (
        lambda x: x[x > 0] * 2,
        lambda x: x.nonzero() + 1,
        lambda x: torch.unique(x.round()) * 2,
        lambda x: x * 2 if x.sum() > 0 else x - 1,
        lambda x: x[: int(x.abs().sum()) % 4] * 2,
        lambda x: torch.masked_select(x, x > 0).sum(),
        lambda x: x * x.sum().item(),
    )
    x = torch.randn(5, 4)
    for fn in programs:
        torch._dynamo.reset()
        compiled = tofuse.compile(fn)
        for given in (x, -x, x * 3):
            assert_same(compiled, fn, given)


def test_grad_modes():
    x = torch.ones(3, requires_grad=True)
    compiled = tofuse.compile(lambda x: x * 2)
    with torch.no_grad():
        assert not compiled(x).requires_grad
    assert compiled(x).requires_grad
    with torch.inference_mode():
        assert compiled(x).is_inference()

    def inner(x):
        with torch.no_grad():
            y = x * 2
        return y + x

    (gradient,) = torch.autograd.grad(tofuse.compile(inner)(x).sum(), x)
    assert torch.equal(gradient, torch.ones(3))


def test_autocast():
    net, x = nn.Linear(4, 4), torch.randn(2, 4)
    compiled = tofuse.compile(lambda x: net(x).relu().softmax(-1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, expected = compiled(x), net(x).relu().softmax(-1)
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, rtol=1e-2, atol=1e-2)


def test_functional_transforms():
    x = torch.randn(3, 4)
    inside = tofuse.compile(torch.vmap(lambda x: x.softmax(-1)))
    torch.testing.assert_close(inside(x), x.softmax(-1))
    outside = torch.vmap(tofuse.compile(lambda x: x.softmax(-1)))
    torch.testing.assert_close(outside(x), x.softmax(-1))
    gradient = tofuse.compile(lambda x: torch.func.grad(lambda y: (y**2).sum())(x))
    torch.testing.assert_close(gradient(x), 2 * x)


def test_checkpointing():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    x = torch.randn(3, 4, requires_grad=True)

    def f(x):
        return torch.utils.checkpoint.checkpoint(net, x, use_reentrant=False).sum()

    assert_as_eager(f, x)


# -- errors --------------------------------------------------------------------------------------


def test_wrong_options_raise():
    with pytest.raises(OptionError, match="no option 'dynamc'; did you mean 'dynamic'"):
        tofuse.compile(torch.sin, dynamc=True)
    with pytest.raises(OptionError, match="precision must be 'fast' or 'eager', not 'slow'"):
        tofuse.compile(torch.sin, precision="slow")
    with pytest.raises(ValueError, match="no stage 'grph' to show"):
        tofuse.compile(torch.sin, show="grph")
    with pytest.raises(
        OptionError, match="show must be names of stages such as 'graph,plan', not 3"
    ):
        tofuse.compile(torch.sin, show=3)
    for name in ("dynamic", "fullgraph", "verify", "strict"):
        with pytest.raises(OptionError, match=f"{name} must be True.* False.*, not 'no'"):
            tofuse.compile(torch.sin, **{name: "no"})
    with pytest.raises(OptionError, match=r"executors must be a tuple .*, not \(\)"):
        tofuse.compile(torch.sin, executors=())
    with pytest.raises(OptionError, match="measure must be True or False, not 'yes'"):
        tofuse.explain(torch.sin, measure="yes")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="memory_efficient_fusion is capture='trace'"):
        tofuse.memory_efficient_fusion(torch.sin, capture="dynamo")


def test_wrong_value_in_the_environment(monkeypatch):
    monkeypatch.setenv("TOFUSE_TUNE", "fast")
    with pytest.raises(OptionError, match=r"not 'fast'; the environment sets .*TOFUSE_TUNE"):
        tofuse.compile(torch.sin)
    with pytest.raises(OptionError, match=r"not 'quick'$"):
        tofuse.compile(torch.sin, tune="quick")
    tofuse.compile(torch.sin, tune="off")


def test_backend_options(capsys):
    f, x = lambda x: x.sin() * 2, torch.ones(3)
    compiled = torch.compile(f, backend="tofuse", options={"show": "plan"})
    assert torch.allclose(compiled(x), f(x)) and "launch" in capsys.readouterr().out
    for name, value in (("shw", "plan"), ("capture", "trace")):
        torch._dynamo.reset()
        with pytest.raises(RuntimeError, match="OptionError"):
            torch.compile(f, backend="tofuse", options={name: value})(x)
    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match="OptionError"):
        torch.compile(f, backend="tofuse", mode="reduce-overheads")(x)


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_torchscript_is_not_compiled():
    linear, x = nn.Linear(4, 3), torch.ones(2, 4)
    scripted = torch.jit.trace(linear, x)
    assert torch.equal(tofuse.compile(scripted)(x), linear(x))
    assert "TorchScript" in str(tofuse.explain(scripted)(x))


def test_show_accepts_a_tuple(capsys):
    tofuse.compile(lambda x: x.sin() + 1, show=("graph", "plan"))(torch.randn(3))
    text = capsys.readouterr().out
    assert "inference: graph" in text and "inference: plan" in text


def test_unwritable_dump_folder_raises(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match="is not a writable folder"):
        tofuse.compile(torch.sin, dump=tmp_path / "file" / "folder")


MISTAKES = {
    "sizes": (lambda a, b: a + b, (torch.ones(3), torch.ones(4))),
    "product": (lambda a, b: a @ b, (torch.ones(3, 4), torch.ones(3, 4))),
    "dtypes": (lambda a, b: a @ b, (torch.ones(3, 3), torch.ones(3, 3).long())),
    "dimension": (lambda a, b: a.sum(5) + b, (torch.ones(3), torch.ones(3))),
    "index": (lambda a, b: a[b], (torch.ones(3), torch.tensor([7]))),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_user_errors_raise_as_in_eager(name):
    fn, args = MISTAKES[name]
    with pytest.raises((RuntimeError, IndexError)):
        fn(*args)
    with pytest.raises((RuntimeError, IndexError)) as caught:
        tofuse.compile(fn)(*args)
    if name in ("sizes", "product", "dimension"):  # found at compile time
        assert caught.traceback[-1].name == "<lambda>", "the user's line comes last"


# -- reports, stages, memory ---------------------------------------------------------------------


def test_report_of_forward_and_backward():
    net, x = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)), torch.randn(4, 8)
    report = tofuse.explain(net, precision="eager")(x)
    assert {g.phase for g in report.graphs} == {"forward", "backward"}
    assert {k.phase for k in report.forward.kernels} == {"forward"}
    assert {k.phase for k in report.backward.kernels} == {"backward"}
    assert len(report.kernels) == len(report.forward.kernels) + len(report.backward.kernels)
    assert any("mm" in c.name for c in report.forward.library_calls)
    for call in report.library_calls:
        assert call.reason and call.phase in ("forward", "backward")
    for kernel in report.kernels:
        assert "define" in kernel.source and kernel.name in kernel.loops
    assert 0 < report.bytes_after < report.bytes_before
    assert report.compile_ms > 0
    assert all(r.nbytes > 0 for r in report.regions)
    assert all(p.grad is None for p in net.parameters())


def test_verdicts_have_rule_bytes_and_line():
    def f(x, w):
        y = (x * 2).relu()
        return (y @ w).sigmoid()

    report = tofuse.explain(f)(torch.randn(16, 16), torch.randn(16, 16))
    fused = [v for v in report.verdicts if v.fused]
    refused = [v for v in report.verdicts if not v.fused]
    assert fused[0].bytes_saved > 0 and fused[0].launches_saved == 1
    after = "library call: its epilogue (sigmoid) is in the next kernel"
    assert {v.rule for v in refused} == {"library call", after}
    assert all(v.loc is not None and v.loc.file == __file__ for v in report.verdicts)
    assert "return (y @ w).sigmoid()" in {v.loc.code for v in refused if v.loc}
    assert str(fused[0].rule) in str(report)


def test_bytes_saved_by_verdicts_add_up():
    """Fusion saves the write of a value with two readers and both reads; outputs are written."""

    def f(x):
        y = x.sin()
        z = y.cos() * y
        return z, z.exp()

    x = torch.randn(100, 50)
    report = tofuse.explain(f)(x)
    by_pair = {(v.producer, v.consumer): v.bytes_saved // x.nbytes for v in report.verdicts}
    assert by_pair == {("sin", "cos"): 2, ("sin", "mul"): 1, ("cos", "mul"): 2, ("mul", "exp"): 1}
    saved = sum(v.bytes_saved for v in report.verdicts)
    assert saved == report.bytes_before - report.bytes_after


def test_copy_of_a_view_has_the_line_of_the_view():
    def f(x):
        y = x.sin().flip(0)
        return y.sort(0).values

    report = tofuse.explain(f)(torch.randn(10, 5))
    lines = {v.loc.code for v in report.verdicts if v.loc is not None}
    assert lines == {"y = x.sin().flip(0)", "return y.sort(0).values"}
    assert all(v.loc is not None for v in report.verdicts)


def test_explain_twelve_times():
    def f(x):
        return x.sin() + 1

    for _ in range(12):  # more than Dynamo's limit of recompilations of one function
        report = tofuse.explain(f)(torch.randn(3))
        assert [g.phase for g in report.graphs] == ["inference"]
        assert len(report.kernels) == 1


SCRIPT = "import torch, tofuse; tofuse.compile(lambda x: x.sin() + 1)(torch.randn(3))"


def test_stages_are_printed_and_dumped(tmp_path):
    environment = {"TOFUSE_SHOW": "graph,regions,loops,source,plan", "TOFUSE_DUMP": str(tmp_path)}
    command = ["env", *(f"{k}={v}" for k, v in environment.items()), sys.executable, "-c", SCRIPT]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for stage in ("graph", "regions", "loops", "source", "plan"):
        assert f"--- tofuse inference: {stage} ---" in shown
        (file,) = tmp_path.glob(f"*_inference_{stage}.txt")
        assert file.read_text().strip() and file.read_text().strip() in shown
    assert "sin" in shown and "define" in shown


def test_show_option_prints_a_stage(capsys):
    tofuse.compile(lambda x: x.sin() + 1, show="graph")(torch.randn(3))
    shown = capsys.readouterr().out
    assert "--- tofuse inference: graph ---" in shown and "source" not in shown


def test_profiler_shows_kernel_names():
    compiled, x = tofuse.compile(lambda x: x.sin() + 1), torch.randn(100)
    compiled(x)
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiled:
        compiled(x)
    assert any(e.key.startswith("tofuse::sin") for e in profiled.key_averages())


def test_memory_stats_and_empty_cache():
    compiled = tofuse.compile(lambda x: x.sin() + 1)
    tofuse.empty_cache()
    before = tofuse.memory_stats()
    x = torch.randn(1 << 20)
    result = compiled(x)
    stats = tofuse.memory_stats()
    assert set(stats) == {*("held_bytes", "used_bytes", "limit_bytes", "blocks", "hits", "misses")}
    assert stats["used_bytes"] >= before["used_bytes"] + result.nbytes
    assert stats["misses"] > before["misses"]
    del result
    assert tofuse.memory_stats()["used_bytes"] == before["used_bytes"]
    compiled(x)
    assert tofuse.memory_stats()["hits"] > before["hits"]
    assert tofuse.empty_cache() >= x.nbytes
    assert tofuse.memory_stats()["held_bytes"] == before["held_bytes"]
