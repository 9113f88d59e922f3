"""Machine code: in a store on disk, with the same results, and not longer than it must be."""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from llvmlite.binding import ffi

from tofuse.backends.cpu.llvm import machine_code
from tofuse.backends.cpu.llvm.machine_code import ObjectCode, assembly, object_codes
from tofuse.backends.cpu.llvm.vector_math.formula_builder import math_symbol
from tofuse.backends.cpu.llvm.vector_math.registry import math_definitions
from tofuse.disk_store import Store
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


def object_code(text: str, store: Store | None) -> ObjectCode:
    (code,) = object_codes([text], store, threads=1)
    if isinstance(code, CompileError):
        raise code
    return code


PROGRAM = """
import sys, torch, tofuse
from tofuse.backends.cpu.llvm import machine_code as code
if sys.argv[2] == "again":
    def refuse(machine, text):
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
        def compiles(machine: object, text: str) -> machine_code.ObjectCode:
            raise AssertionError("compiled again")

        monkeypatch.setattr(machine_code, "_compile", compiles)

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


def variant(number: int) -> str:
    return TEXT.replace("77", str(number))


def test_threads_compile_the_same_code(tmp_path):
    texts = [variant(n % 13) for n in range(40)]
    texts.insert(7, "define nonsense")
    alone = [*object_codes(texts, None, threads=1)]
    for store in (None, Store(tmp_path), Store(tmp_path)):
        together = object_codes(texts, store, threads=5)
        assert isinstance(together[7], CompileError)
        assert [c for c in together if isinstance(c, ObjectCode)] == [
            c for c in alone if isinstance(c, ObjectCode)
        ]


def test_code_is_generated_while_another_thread_is_in_llvm():
    machine = machine_code.host_target_machine()
    module = machine_code._optimize(TEXT, machine)
    emit_object = machine_code._unlocked("LLVMPY_TargetMachineEmitToMemory")
    with ffi.OutputString() as error:
        with ffi.lib._lock, ThreadPoolExecutor(1) as pool:
            buffer = pool.submit(emit_object, machine, module, 1, error).result(timeout=60)
        assert buffer
    ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def test_library_without_a_file_is_locked(monkeypatch):
    def has_no_file(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(machine_code.ctypes, "CDLL", has_no_file)
    machine_code._unlocked.cache_clear()
    (code,) = object_codes([TEXT], None, threads=1)
    machine_code._unlocked.cache_clear()
    monkeypatch.undo()
    assert code == object_code(TEXT, None)


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_reduction_of_large_angles_is_in_a_kernel_once(name):
    """Vector math is inlined at each call; its long branch for rare arguments is not."""
    calls = [
        f"  %y{k + 1} = call <8 x float> {math_symbol(name, 'f32', 8)}(<8 x float> %y{k})"
        for k in range(8)
    ]
    chain = ["define <8 x float> @chain(<8 x float> %y0) {", *calls, "  ret <8 x float> %y8", "}"]
    text = assembly("\n".join([*math_definitions([(name, "f32")], 8).values(), *chain]))
    assert len(re.findall(r"^\"?tofuse\.reduce_.*:$", text, re.MULTILINE)) == 1
