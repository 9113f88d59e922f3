"""Faults injected into compilation and calls: nothing is wrong, and the next call works."""

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from functools import partial
from pathlib import Path
from types import CodeType

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

import tofuse
from tests.support.memory_limit import address_space
from tofuse.backends.cpu.llvm.load import CODE
from tofuse.errors import CompileError

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
PACKAGE = str(Path(tofuse.__file__).parent)
W = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))


def program(x):
    return (torch.sin(x) @ W).softmax(-1) + x.sum(0)


def result_and_gradient(run):
    x = torch.linspace(-1, 1, 30).reshape(5, 6).requires_grad_()
    y = run(x)
    return y, *torch.autograd.grad(y.cos().sum(), x)


def compiled_as_new(folder, **options):
    """Return the compiled program, of which no machine code is known."""
    torch._dynamo.reset()
    CODE.forget()
    return tofuse.compile(program, cache_dir=folder / str(time.time_ns()), **options)


def functions_of_a_compilation(call):
    """Return the code of all functions of the package that `call` calls while it compiles."""
    found: dict[CodeType, None] = {}
    depth = 0

    def profile(frame, event, arg):
        nonlocal depth
        step = frame.f_code.co_name in ("_program_variants", "compile_graph")
        if event == "return" and step:
            depth -= 1
        if event == "call" and depth and frame.f_code.co_filename.startswith(PACKAGE):
            found[frame.f_code] = None
        if event == "call" and step:
            depth += 1

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return list(found)


def call_with_fault(call, code, error):
    """Return the result of a call in which the function raises an error, once; None if it did not.

    What is kept for the process, such as the features of the processor, is not called again.
    """
    raised = False

    def profile(frame, event, arg):
        nonlocal raised
        if event == "call" and frame.f_code is code and not raised:
            raised = True
            raise error

    sys.setprofile(profile)
    try:
        result = call()
    finally:
        sys.setprofile(None)
    return result if raised else None


def assert_right(results):
    for got, expected in zip(results, result_and_gradient(program), strict=True):
        torch.testing.assert_close(got, expected)


FAULTS = {  # the error in a function, the options, the errors that the user sees
    "error": (KeyError, {}, ()),
    "strict": (KeyError, {"strict": True}, (BackendCompilerFailed, CompileError)),
    "no memory": (MemoryError, {}, (BackendCompilerFailed, MemoryError)),
    "Ctrl-C": (KeyboardInterrupt, {}, (KeyboardInterrupt,)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_anywhere_in_a_compilation(fault, some, tmp_path):
    """PyTorch runs the program, with one warning; or there is one error, and the next call works.

    The fault is injected into each function of the package that a compilation calls: all steps of
    `driver/compile_program.py`, all passes, the backend, the cache.
    """
    kind, options, errors = FAULTS[fault]
    warm = compiled_as_new(tmp_path, **options)
    codes = functions_of_a_compilation(lambda: result_and_gradient(warm))
    assert len(codes) > 1000
    chosen, arrived = some(codes, 300), 0
    for code in chosen:
        compiled, found = compiled_as_new(tmp_path, **options), None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                found = call_with_fault(
                    partial(result_and_gradient, compiled), code, kind("injected")
                )
                assert found is None or not errors, code
            except errors as error:
                found = ()
                assert "injected" in str(error)
                assert fault != "strict" or "test_injected_faults.py:" in str(error), str(error)
        messages = [str(w.message) for w in caught]
        if not found:
            assert messages == [], code
        else:
            assert_right(found)
            # torch's own code may have called the function, and raise another type
            assert len(messages) == 1
            assert re.search(r"through PyTorch: \w+: '?injected", messages[0]), messages[0]
            assert "test_injected_faults.py:" in messages[0]
        arrived += found is not None
        assert gc.isenabled()
        assert_right(result_and_gradient(compiled))
    assert arrived > len(chosen) / 2


def test_a_fork_in_the_middle_of_a_compilation():
    """The child finds no lock that a thread of the parent holds."""
    compiles = threading.Event()

    def check(request):
        compiles.set()
        time.sleep(0.3)
        return False

    tofuse.register_executor("slow", ops=("aten.mm",), run=torch.mm, check=check)
    try:
        slow = tofuse.compile(program, executors=("slow", "llvm", "aten"))
        quick, x = tofuse.compile(lambda x: x.cos() + 1), torch.randn(5, 6)
        thread = threading.Thread(target=slow, args=(x,))
        thread.start()
        assert compiles.wait(60)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, on Python 3.12
            child = os.fork()
        if child == 0:
            signal.alarm(60)
            torch.set_num_threads(1)  # GNU OpenMP has no threads in the child
            right = all(
                torch.allclose(f(x), g(x))
                for f, g in ((quick, lambda x: x.cos() + 1), (slow, program))
            )
            os._exit(0 if right else 1)
        assert os.waitpid(child, 0)[1] == 0
        thread.join()
        torch.testing.assert_close(slow(x), program(x))
    finally:
        tofuse.unregister_executor("slow")


def writing(x):
    x.mul_(2)
    y = (x.view(-1, 64) @ x[:4096].view(64, 64)).cumsum(0).tanh()
    x.add_(1)
    return y.t().contiguous(), y.softmax(-1)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory of a process")
@pytest.mark.broad(3)
@pytest.mark.parametrize("options", [{}, {"capture": "trace"}, {"dynamic": True}], ids=str)
def test_memory_that_cannot_be_allocated_is_eagers_error(options):
    """Wherever it is missing: an argument has a value that eager gives it, and calls go on."""
    compiled, x = (
        tofuse.compile(writing, **options),
        torch.randn((1 << 23) + 4096),
    )  # not from the heap
    expected = [x, x * 2, x * 2 + 1]
    results, errors = writing(x.clone()), 0
    for megabytes in (0, 50, 120):
        compiled(x.clone())
        tofuse.empty_cache()
        written = x.clone()
        with address_space(megabytes << 20):
            try:
                compiled(written)
            except RuntimeError as error:
                assert "DefaultCPUAllocator: can't allocate memory" in str(error)
                errors += 1
        assert any(torch.equal(written, value) for value in expected)
        for got, result in zip(compiled(x.clone()), results, strict=True):
            torch.testing.assert_close(got, result, rtol=1e-3, atol=1e-3)
    assert errors


def test_sizes_that_no_memory_holds_are_eagers_error():
    compiled = tofuse.compile(lambda x, y: x[:, None] + y, dynamic=True)
    for size in (3, 1 << 21, 4, 1 << 31, 1 << 33, 5):
        x = torch.ones(1).expand(size)
        if size < 10:
            assert torch.equal(compiled(x, x), torch.full((size, size), 2.0))
        else:
            with pytest.raises(RuntimeError, match=r"can't allocate memory|calculation overflowed"):
                compiled(x, x)


def test_errors_of_the_users_own_code_are_raised_as_they_are():
    """Of executors, hooks and custom operators; the call after them works."""
    fails: list[bool] = []

    def run(*args):
        if fails:
            raise LookupError("the user's own")
        return torch.mm(*args)

    module = torch.nn.Linear(6, 6)
    module.register_forward_hook(lambda module, args, result: run(result, result))
    tofuse.register_executor("own", ops=("aten.mm",), run=run)
    try:
        executor = tofuse.compile(lambda x: (x @ x).sin(), executors=("own", "llvm", "aten"))
        x = torch.randn(6, 6)
        for call in (executor, tofuse.compile(module)):
            expected = call(x)
            fails.append(True)
            with pytest.raises(LookupError, match="the user's own"):
                call(x)
            fails.clear()
            assert torch.equal(call(x), expected)
    finally:
        tofuse.unregister_executor("own")


class Compiled(torch.utils.data.Dataset):
    """Rows that a compiled function makes in the worker of a loader."""

    def __init__(self, function):
        self.function = function

    def __len__(self):
        return 6

    def __getitem__(self, k):
        return self.function(torch.full((300, 300), float(k)))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_workers_of_a_loader_call_compiled_functions():
    """Compiled before the fork, after kernels ran on several threads, and in the worker."""

    def fn(x):
        return (x.cos() * 2).sum(-1) + 1

    expected = torch.stack([fn(torch.full((300, 300), float(k))) for k in range(6)])
    for warm in (True, False):
        compiled = tofuse.compile(fn)
        if warm:
            compiled(torch.zeros(300, 300))
        loader = torch.utils.data.DataLoader(Compiled(compiled), 2, num_workers=2, timeout=120)
        torch.testing.assert_close(torch.cat(list(loader)), expected)


SHUTDOWN = """
import atexit, gc, torch, tofuse
class Late:
    def __del__(self): self.function(torch.ones(40, 40))
late = Late()
late.function = tofuse.compile(lambda x: (x.sin() * 2).softmax(-1))
loss = late.function(torch.ones(40, 40, requires_grad=True)).sum()
late.cycle = late
atexit.register(lambda: print(tofuse.compile(lambda x: x * 3 + 1)(torch.ones(3)).sum().item()))
"""


def test_an_interpreter_that_ends():
    """Compiled functions live to the end, one is called by a finalizer, one is compiled at exit."""
    command = [sys.executable, "-W", "ignore", "-c", SHUTDOWN]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "12.0\n", "")


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no timers")
def test_signal_handlers_call_the_function_that_they_interrupt():
    """In requests for memory, in kernels, between them.

    Traced programs only: Dynamo holds a lock while it checks guards, and a handler would wait.
    """

    def fn(x):
        return (x.sin() * 2).softmax(-1)

    compiled, x = tofuse.compile(fn, capture="trace"), torch.randn(300, 300)
    expected, handled = fn(x), []

    @torch.inference_mode()
    def handler(number, frame):
        torch.testing.assert_close(compiled(x), expected)
        handled.append(number)

    handler(0, None)
    torch.testing.assert_close(compiled(x), expected)
    before = signal.signal(signal.SIGALRM, handler)
    try:
        for count in range(1, 31):
            signal.setitimer(signal.ITIMER_REAL, 0.001 + count * 0.0003)
            while len(handled) < count:
                torch.testing.assert_close(compiled(x), expected)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no timers")
def test_an_interrupted_kernel_ends_before_the_interrupt_is_raised():
    compiled = tofuse.compile(lambda x: x.sin().exp().tan().sum())
    x, handled, raised = torch.randn(3_000_000), [0], 0
    expected = compiled(x)

    def interrupt(number, frame):
        handled[0] += 1
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for count, delay in enumerate((0.001, 0.004, 0.007, 0.013), 1):
            try:
                signal.setitimer(signal.ITIMER_REAL, delay)
                while handled[0] < count:
                    compiled(x)
            except KeyboardInterrupt:
                raised += 1
            torch.testing.assert_close(compiled(x), expected)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert raised  # torch ignores an error while it checks guards
