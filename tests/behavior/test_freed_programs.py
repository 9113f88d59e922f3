"""What compiled programs leave behind in the process: no machine code, no mappings, no objects."""

import ctypes
import gc
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import tofuse
from tofuse.backends.llvm.load import CODE

PROGRAM = """
def program(x):
    y = (x @ x).{first}() + {number}.25
    return (torch.softmax(y, -1) * x.{second}()).sum(0)
"""
NAMES = ("sin", "cos", "tanh", "sigmoid", "exp")


def new_program(number):
    scope = {"torch": torch}
    first, second = NAMES[number % 5], NAMES[number // 5 % 5]
    exec(PROGRAM.format(first=first, second=second, number=number), scope)
    return scope["program"]


def compile_and_drop(number, capture="dynamo"):
    x = torch.randn(8, 8, requires_grad=True)
    tofuse.compile(new_program(number), capture=capture)(x).sum().backward()
    torch._dynamo.reset()


def own_objects():
    gc.collect()
    names = (f"{type(x).__module__}.{type(x).__qualname__}" for x in gc.get_objects())
    return Counter(name for name in names if name.startswith(("tofuse.", "ctypes.")))


def mappings():
    return len(Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.broad(1)
@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_dropped_programs_leave_nothing_behind(capture, monkeypatch, request):
    monkeypatch.setattr("tofuse.backends.llvm.load.MAX_RECENT_LINKED_TEXTS", 2)
    rounds = 100 if request.config.getoption("--full") else 6
    for number in range(4):
        compile_and_drop(number, capture)
    before, maps, modules = own_objects(), mappings(), len(CODE.modules)
    for number in range(4, 4 + rounds):
        compile_and_drop(number, capture)
    more = own_objects() - before
    more.pop("tofuse.disk_store.EntryFile", None)  # torch holds one for each entry on disk
    assert {name: n for name, n in more.items() if n >= rounds} == {}
    assert len(CODE.modules) < modules + rounds
    assert mappings() < maps + 2 * rounds


def test_code_lives_as_long_as_a_backward_is_to_come(fresh_dynamo):
    x = torch.randn(8, 8, requires_grad=True)
    program = new_program(77)
    (expected,) = torch.autograd.grad(program(x).sum(), x)
    loss = tofuse.compile(program)(x).sum()
    torch._dynamo.reset()
    for number in range(4):
        compile_and_drop(number)
    CODE.forget()
    gc.collect()
    (gradient,) = torch.autograd.grad(loss, x)
    torch.testing.assert_close(gradient, expected)


def test_finalizers_of_a_cycle_may_call_a_program(fresh_dynamo):
    """The collector calls them in any order, before it frees anything."""
    results = []

    class Owner:
        def __init__(self, program):
            self.program, self.me = program, self

        def __del__(self):
            results.append(self.program(torch.ones(8, 8)))

    program = new_program(78)
    expected = program(torch.ones(8, 8))
    owner = Owner(tofuse.compile(program, capture="trace"))
    owner.program(torch.ones(8, 8))
    CODE.forget()
    del owner
    gc.collect()
    torch.testing.assert_close(results, [expected])


TEXT = """
define i32 @kernel(ptr %context) {{
  store i64 {number}, ptr %context
  ret i32 0
}}
"""


def call(function):
    word = ctypes.c_int64()
    assert function(ctypes.byref(word)) == 0
    return word.value


def test_threads_load_and_drop_the_same_texts(monkeypatch):
    monkeypatch.setattr("tofuse.backends.llvm.load.MAX_RECENT_LINKED_TEXTS", 1)
    monkeypatch.setattr("tofuse.backends.llvm.load.MAX_LIBRARIES_PER_LINKER", 3)
    wrong = []

    def work():
        for k in range(150):
            (function,) = CODE.load(TEXT.format(number=k % 4), ["kernel"])
            if call(function) != k % 4:
                wrong.append(k)

    with ThreadPoolExecutor(4) as pool:
        for ended in [pool.submit(work) for _ in range(4)]:
            ended.result()
    assert wrong == []
