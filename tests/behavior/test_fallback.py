"""A kernel that does not compile: a warning, PyTorch's result, and a repro file."""

import re
import runpy
from pathlib import Path

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed, TorchDynamoException

import tofuse
from tofuse.backends.cpu.llvm import elementwise
from tofuse.errors import CompileError


def fn(x: torch.Tensor) -> torch.Tensor:
    y = torch.sign(x.t()) * x.t()
    return y / y.sum(1, keepdim=True)


@pytest.fixture(autouse=True)
def without_sign(monkeypatch: pytest.MonkeyPatch):
    """Remove the backend's rule for one op."""
    torch._dynamo.reset()
    monkeypatch.delitem(elementwise._RULES, "sign")
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("dynamic", [False, True])
def test_region_falls_back_to_pytorch_with_a_warning(tmp_path: Path, dynamic: bool):
    x = torch.randn(6, 8)
    compiled = tofuse.compile(fn, dump=str(tmp_path), dynamic=dynamic)
    with pytest.warns(UserWarning, match=r"through PyTorch: no LLVM rule for sign") as caught:
        got = compiled(x)
    torch.testing.assert_close(got, fn(x))
    torch.testing.assert_close(compiled(x + 1), fn(x + 1))  # without a second warning
    message = str(caught[0].message)
    assert "test_fallback.py:" in message, "the warning names the user's line"
    path = re.search(r"; (\S+\.py) reproduces it", message)
    assert path is not None
    with pytest.raises(CompileError, match="no LLVM rule for sign"):
        runpy.run_path(path[1])


def test_repro_runs_with_a_fixed_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    with pytest.warns(UserWarning, match="no LLVM rule for sign"):
        tofuse.compile(fn, dump=str(tmp_path), dynamic=True)(torch.randn(6, 8))
    (path,) = tmp_path.glob("*.py")
    text = path.read_text()
    assert "as_strided((64, 64), (1, 64))" in text, "the input is transposed"
    monkeypatch.setitem(elementwise._RULES, "sign", elementwise._RULES["neg"])
    runpy.run_path(str(path))
    assert "tensor(" in capsys.readouterr().out


def test_strict_raises(tmp_path: Path):
    with pytest.raises(BackendCompilerFailed, match=r"fallback.py:\d+.*no LLVM rule for sign"):
        tofuse.compile(fn, strict=True, dump=str(tmp_path))(torch.randn(6, 8))
    assert len(list(tmp_path.glob("*.py"))) == 1


def test_fallback_without_a_writable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setattr("tofuse.report.repro.user_cache", lambda: blocked)
    x = torch.randn(6, 8)
    with pytest.warns(UserWarning, match="no LLVM rule for sign") as caught:
        got = tofuse.compile(fn)(x)
    torch.testing.assert_close(got, fn(x))
    assert "reproduces it" not in str(caught[0].message)


def test_fallback_region_with_a_flipped_input():
    """Torch has no negative strides: the region that PyTorch runs flips its input itself."""

    def flipped(x):
        return torch.sign(x.flip(0)[1:]) * x.cumsum(1)[1:]

    x = torch.randn(6, 8)
    with pytest.warns(UserWarning, match="no LLVM rule for sign"):
        torch.testing.assert_close(tofuse.compile(flipped)(x), flipped(x))


REASONS = {
    "one line": "the shapes differ",
    "several lines": "a reason\n  Explanation: it differs\n  Hint: make it equal\n\nfrom user code",
    "long": "\n".join(f"line {k} {'x' * 200}" for k in range(40)),
    "braces": "{0} %s {name}\n{}",
}


@pytest.mark.filterwarnings("ignore:Error detected in")  # anomaly mode tells of the error, too
@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("kind", [RuntimeError, NotImplementedError, KeyError])
def test_strict_keeps_the_whole_reason_of_a_failed_capture(reason, kind, fresh_dynamo):
    """A program that AOTAutograd cannot trace: the gradient of an operator fails."""

    def fail(ctx, gradient):
        raise kind(REASONS[reason])

    twice = torch.library.custom_op(
        "tofuse_fallback::twice", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    twice.register_fake(torch.empty_like)
    twice.register_autograd(fail)

    def program(x):
        return twice(x) + 1

    x = torch.randn(3, requires_grad=True)
    pattern = r"fallback.py:\d+.*does not compile"
    with pytest.raises(BackendCompilerFailed, match=pattern) as caught:
        tofuse.compile(program, strict=True)(x)
    assert str(kind(REASONS[reason])) in str(caught.value)
    with pytest.warns(tofuse.TofuseWarning, match="through PyTorch") as warned:
        torch.testing.assert_close(tofuse.compile(program)(x), x * 2 + 1)
    (ours,) = (w for w in warned if w.category is tofuse.TofuseWarning)
    assert len(str(ours.message).splitlines()) == 1


def break_graph(x):
    torch._dynamo.graph_break()
    return x + 1


def write_file(x):
    with open("/dev/null", "w") as file:
        file.write("")
    return x + 1


def branch(x):
    return x + 1 if x.sum() > 0 else x - 1


def read_number(x):
    return x[: x.sum().numpy()]


@pytest.mark.parametrize("options", [{}, {"strict": True}], ids=str)
@pytest.mark.parametrize("program", [break_graph, write_file, branch, read_number])
def test_reasons_of_graph_breaks_are_those_of_torch(program, options, fresh_dynamo):
    def message(compiled):
        with pytest.raises(TorchDynamoException) as caught:
            compiled(torch.ones(3))
        return str(caught.value)

    expected = message(torch.compile(program, backend="eager", fullgraph=True))
    torch._dynamo.reset()
    assert message(tofuse.compile(program, fullgraph=True, **options)) == expected
    assert "Explanation" in expected and f"in {program.__name__}" in expected
