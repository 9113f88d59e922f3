"""Faults injected into compilation and calls: nothing is wrong, and the next call works."""

import gc
import os
import signal
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
from tofuse.backends.llvm.load import CODE
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
    CODE.entries.clear()
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
    for code in some(codes, 300):
        compiled, found = compiled_as_new(tmp_path, **options), []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                found = call_with_fault(
                    partial(result_and_gradient, compiled), code, kind("injected")
                )
                assert found is None or not errors, code
            except errors as error:
                assert "injected" in str(error)
                assert fault != "strict" or "test_injected_faults.py:" in str(error), str(error)
        messages = [str(w.message) for w in caught]
        if errors or found is None:
            assert messages == [], code
        else:
            assert_right(found)
            assert len(messages) == 1 and "through PyTorch: KeyError: 'injected'" in messages[0]
            assert "test_injected_faults.py:" in messages[0]
        assert gc.isenabled()
        assert_right(result_and_gradient(compiled))


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


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no timers")
def test_signal_handlers_call_the_function_that_they_interrupt():
    """In requests for memory, in kernels, between them."""

    def fn(x):
        return (x.sin() * 2).softmax(-1)

    compiled, x = tofuse.compile(fn), torch.randn(300, 300)
    expected, handled = fn(x), []

    @torch.inference_mode()
    def handler(number, frame):
        torch.testing.assert_close(compiled(x), expected)
        handled.append(number)

    handler(0, None)
    torch.testing.assert_close(compiled(x), expected)
    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        deadline = time.monotonic() + 60
        while len(handled) < 30 and time.monotonic() < deadline:
            torch.testing.assert_close(compiled(x), expected)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(handled) >= 30


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no timers")
def test_an_interrupted_kernel_ends_before_the_interrupt_is_raised():
    compiled = tofuse.compile(lambda x: x.sin().exp().tan().sum())
    x, late = torch.randn(3_000_000), []
    expected = compiled(x)

    def interrupt(number, frame):
        late.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for delay in (0.001, 0.004, 0.013):
            signal.setitimer(signal.ITIMER_REAL, delay)
            with pytest.raises(KeyboardInterrupt):
                for _ in range(1000):
                    compiled(x)
            assert torch.equal(compiled(x), expected)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(late) == 3
