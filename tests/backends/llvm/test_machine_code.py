"""Machine code in a store on disk: the same results without running LLVM again."""

import subprocess
import sys

import pytest

from tofuse.backends.llvm import machine_code
from tofuse.backends.llvm.machine_code import object_code
from tofuse.cache.store import Store
from tofuse.errors import CompileError

TEXT = """
declare void @abort()
define i32 @kernel(ptr %context) {
  %word = load i64, ptr %context
  %aborts = icmp eq i64 %word, 77
  br i1 %aborts, label %yes, label %no
yes:
  call void @abort()
  ret i32 1
no:
  ret i32 0
}
"""

PROGRAM = """
import sys, torch, tofuse
from tofuse.backends.llvm import machine_code as code
if sys.argv[2] == "again":
    def refuse(text):
        raise AssertionError("compiled again")
    code._compile = refuse
torch.manual_seed(0)
x, w = torch.randn(300, 257, requires_grad=True), torch.randn(257)
def f(x):
    y = torch.nn.functional.dropout(torch.nn.functional.layer_norm(x.erf(), (257,), w), 0.1)
    return (y * x.sin()).sum() + x.logsumexp(0).sum() + (x.T @ x[:, :64]).tanh().mean()
compiled = tofuse.compile(f, strict=True, cache_dir=sys.argv[1])
torch.manual_seed(1)
loss = compiled(x)
loss.backward()
print(loss.item(), x.grad.double().sum().item(), x.grad.double().norm().item())
"""


@pytest.fixture
def forbid_compilation(monkeypatch):
    """Return a function that makes every later compilation fail."""

    def refuse() -> None:
        def compiles(text: str, machine: object) -> machine_code.ObjectCode:
            raise AssertionError("compiled again")

        monkeypatch.setattr(machine_code, "compile_object", compiles)

    return refuse


def test_stored_code_is_not_compiled_again(tmp_path, forbid_compilation):
    first = object_code(TEXT, Store(tmp_path))
    assert "abort" in first.callees
    forbid_compilation()
    assert object_code(TEXT, Store(tmp_path)) == first
    with pytest.raises(AssertionError, match="again"):
        object_code(TEXT, None)
    with pytest.raises(AssertionError, match="again"):
        object_code(TEXT.replace("77", "78"), Store(tmp_path))


@pytest.mark.parametrize("change", ["version", "processor", "passes"])
def test_code_of_another_toolchain_is_not_used(tmp_path, forbid_compilation, monkeypatch, change):
    object_code(TEXT, Store(tmp_path))
    if change == "version":
        monkeypatch.setattr("llvmlite.__version__", "0.0")
    elif change == "processor":
        monkeypatch.setattr(machine_code, "host_features", lambda: "+none")
    else:
        monkeypatch.setattr(machine_code, "PASSES", machine_code.PASSES[:3])
    machine_code._toolchain.cache_clear()
    forbid_compilation()
    with pytest.raises(AssertionError, match="again"):
        object_code(TEXT, Store(tmp_path))
    machine_code._toolchain.cache_clear()


@pytest.mark.parametrize("text", ["", "{}", '{"called": 3}', '{"called": [], "image": "?"}'])
def test_invalid_stored_text_is_replaced(tmp_path, text):
    store = Store(tmp_path)
    entry = machine_code.STORE_KIND, (*machine_code._toolchain(), machine_code.digest(TEXT))
    store.put(*entry, text)
    assert object_code(TEXT, store).image == object_code(TEXT, None).image
    assert store.get(*entry) != text


def test_rejected_module_is_not_stored(tmp_path):
    for _ in range(2):
        with pytest.raises(CompileError, match="rejects"):
            object_code("define nonsense", Store(tmp_path))
    assert not list(tmp_path.rglob("*.json"))


def test_second_process_does_not_run_llvm(tmp_path):
    def run(when: str) -> str:
        command = [sys.executable, "-c", PROGRAM, str(tmp_path), when]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    assert run("first") == run("again") != ""
