"""Variants of programs: which one runs a call, how many there are, and what threads see."""

import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

import tofuse
from tests.support.eager import assert_same, copies, outcome
from tofuse.config import make_config
from tofuse.dispatch.dispatcher import (
    MAX_SPECIALIZED,
    MAX_TABLE_ENTRIES,
    NEW_KEY,
    Dispatcher,
    Entry,
    EntryTable,
    Kind,
)
from tofuse.driver.compile import compile_reporting
from tofuse.torch_internals.dynamo import compile_lock

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def dispatcher(make, threshold=0.0, key=lambda n: n):
    reasons: list[str] = []
    found = Dispatcher(lambda n: n, reasons.append)
    found.specialize(key, make, threshold)
    return found, reasons


def negated(n):
    return (lambda n: -n), f"{n} recurs"


def test_threshold_and_limit_of_variants():
    eager, reasons = dispatcher(negated)
    assert [eager(3), eager(3), eager(3)] == [3, -3, -3]
    assert [eager(n) for n in range(10, 20) for _ in range(2)][1::2] == [
        *(-n for n in range(10, 9 + MAX_SPECIALIZED)),
        *range(9 + MAX_SPECIALIZED, 20),
    ]
    assert reasons == [f"{n} recurs" for n in (3, *range(10, 9 + MAX_SPECIALIZED))]
    patient, _ = dispatcher(negated, 1e9)
    assert [patient(2) for _ in range(100)] == [2] * 100
    at_once, _ = dispatcher(negated, NEW_KEY)
    assert at_once(2) == -2


def test_calls_without_a_key_and_without_a_variant_run_the_default():
    keyless, _ = dispatcher(negated, key=lambda n: None)
    assert [keyless(1) for _ in range(4)] == [1] * 4
    answers = iter([None, negated(1)])
    later, reasons = dispatcher(lambda n: next(answers))
    assert [later(1), later(1), later(1)] == [1, 1, -1] and len(reasons) == 1


def test_a_failure_leaves_room_for_the_next_call():
    def fail(n):
        raise ValueError(n)

    failing, _ = dispatcher(fail)
    assert failing(1) == 1
    for _ in range(2 * MAX_SPECIALIZED):
        with pytest.raises(ValueError, match="1"):
            failing(1)


def test_guarded_variants_come_first():
    found, _ = dispatcher(negated)
    found(3), found(3)
    found.add(Entry(Kind.EAGER, lambda n: n > 9, lambda n: "large", "large"))
    assert [found(3), found(10)] == [-3, "large"]


def test_a_table_holds_the_last_entries():
    table = EntryTable[Entry[int]]()
    entries = [
        Entry(Kind.TRACED, lambda: True, lambda k=k: k, "") for k in range(2 * MAX_TABLE_ENTRIES)
    ]
    for k, entry in enumerate(entries):
        table.add(k % 3, entry)
    assert len(table) == MAX_TABLE_ENTRIES and len({*table}) == MAX_TABLE_ENTRIES
    newest = entries[-3:]
    assert {table.get(k % 3)[0] for k in range(len(entries) - 3, len(entries))} == {*newest}


def test_threads_make_one_variant_each_and_never_wait():
    made: Counter[int] = Counter()
    release, entered = threading.Event(), threading.Event()

    def slow(n):
        made[n] += 1
        entered.set()
        release.wait(10)
        return negated(n)

    found, _ = dispatcher(slow)
    found(1)
    maker = threading.Thread(target=found, args=(1,))
    maker.start()
    assert entered.wait(10)
    assert found(1) == 1  # while the other thread makes the variant
    release.set()
    maker.join(10)
    assert found(1) == -1 and made == {1: 1}


def test_no_call_of_a_kind_runs_the_default_if_its_variant_is_made_at_once():
    both = threading.Barrier(2)

    def slow(n):
        both.wait(10)  # until two threads make it
        return negated(n)

    found, reasons = dispatcher(slow, NEW_KEY)
    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(found(1))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert results == [-1, -1] and reasons == ["1 recurs"]


def normalized(x, y):
    return (x * y.sigmoid()).softmax(-1) + y


def accumulated(x, y):
    x.add_(y * 2)
    return (x - y).tanh()


def made_layout(shape, kind, dtype):
    x = torch.randn(shape, dtype=dtype)
    return {
        "plain": lambda: x,
        "transposed": lambda: x.t().contiguous().t(),
        "strided": lambda: torch.randn(shape[0], 2 * shape[1], dtype=dtype)[:, ::2],
    }[kind]()


def arguments(rng, f):
    """Arguments of random sizes, strides, dtypes and sharing."""
    shape = rng.choice([(3, 5), (3, 5), (3, 5), (4, 6), (1, 7), (6, 2)])
    dtype = rng.choice([torch.float32] * 4 + [torch.float64])
    kinds = ["plain", "plain", "plain", "transposed", "strided"]
    x, y = (made_layout(shape, rng.choice(kinds), dtype) for _ in range(2))
    if rng.random() < 0.2:
        memory = torch.randn(2 * x.numel() + 3, dtype=dtype)
        x = memory[: x.numel()].view(shape)
        y = memory[rng.choice([0, 1, x.numel()]) :][: x.numel()].view(shape)
    elif f is normalized and rng.random() < 0.5:
        x.requires_grad_(rng.random() < 0.7)
        y.requires_grad_()
    return x, y


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("f", [normalized, accumulated])
def test_random_sequences_of_calls_equal_eager(f, dynamic, monkeypatch):
    rng = random.Random(f"{f.__name__} {dynamic}")
    made: list[Dispatcher[object]] = []
    make, start = Dispatcher._make, Dispatcher.specialize
    monkeypatch.setattr(
        Dispatcher, "specialize", lambda d, key, make, threshold: start(d, key, make, 0.0)
    )

    def recorded(d, *call):
        made.append(d)
        return make(d, *call)

    monkeypatch.setattr(Dispatcher, "_make", recorded)
    compiled = tofuse.compile(f, dynamic=dynamic, specialize=True, strict=True)
    for k in range(32):
        args = arguments(rng, f)
        view = torch.t if k % 3 else torch.clone  # so gradients have one of two layouts
        calls = [(lambda *a, g=g, view=view: view(g(*a))) for g in (compiled, f)]
        got, expected = (outcome(call, copies(args), {}) for call in calls)
        assert_same(got, expected)
    assert made
    assert all(len(d.by_key) <= MAX_SPECIALIZED for d in made)


def test_a_second_derivative_changes_no_later_call():
    compiled = tofuse.compile(lambda x: x.sin() * x.exp(), dynamic=True)
    x = torch.randn(4, requires_grad=True, dtype=torch.float64)
    first = compiled(x)
    (gradient,) = torch.autograd.grad(first.sum(), x)
    assert torch.autograd.gradgradcheck(compiled, x)
    again = compiled(x)
    assert type(again.grad_fn) is type(first.grad_fn) and torch.equal(again, first)
    assert torch.equal(torch.autograd.grad(again.sum(), x)[0], gradient)


def test_the_report_and_show_say_why_a_variant_was_made(capsys):
    compiled, report = compile_reporting(lambda x: x.softmax(-1), make_config({"show": ("plan",)}))
    x = torch.randn(3, 5, requires_grad=True)
    compiled(x).backward(torch.randn(3, 5))
    compiled(x).backward(torch.randn(5, 3).t())
    (reason,) = report.variants
    assert reason == "gradients have the strides (1, 3)"
    assert f"another variant of a program: {reason}" in capsys.readouterr().out


PACKAGE = str(Path(tofuse.__file__).parent)


def test_twelve_steps_from_dynamo_to_machine_code(tmp_path):
    stacks: list[list[str]] = []

    def profile(frame, event, arg):
        if event == "call" and frame.f_code.co_name == "_optimize":
            names, caller = [], frame
            while (caller := caller.f_back) is not None:
                file = caller.f_code.co_filename
                if file.startswith(PACKAGE) and not file.endswith("thread_map.py"):  # as `map` is
                    names.append(caller.f_code.co_name)
            stacks.append(names[::-1])

    compiled = tofuse.compile(lambda x: x.softmax(-1) * 3.25, cache_dir=tmp_path)
    sys.setprofile(profile)
    try:
        compiled(torch.randn(13, 17))
    finally:
        sys.setprofile(None)
    assert stacks
    for stack in stacks:
        steps = stack[stack.index("compile_program") :]
        assert len(steps) <= 12, steps
        assert steps[-1] == "_compile"


def small(x, w):
    return (torch.sin(x) * w).sum(-1).relu()


def wide(x, w):
    return torch.softmax(x @ w[:, None] + x, -1).cos()


@pytest.mark.parametrize("dynamic", [None, True])
def test_eight_threads_compile_and_call(dynamic):
    functions = [small, wide]
    shared = [tofuse.compile(f, dynamic=dynamic) for f in functions]
    failures: list[BaseException] = []
    start = threading.Barrier(8)

    def work(number):
        try:
            own = tofuse.compile(functions[number % 2], dynamic=dynamic)
            generator = torch.Generator().manual_seed(number)
            start.wait(60)
            for k in range(4):
                index = (number + k) % 2
                rows = 3 + (number * k) % 3
                x = torch.randn(rows, 7, generator=generator).requires_grad_()
                w = torch.randn(7, generator=generator).requires_grad_()
                f = functions[index]
                expected = torch.autograd.grad(f(x, w).square().sum(), (x, w))
                calls = [shared[index]] + ([own] if index == number % 2 else [])
                for call in calls:
                    result = call(x, w)
                    torch.testing.assert_close(result, f(x, w))
                    got = torch.autograd.grad(result.square().sum(), (x, w))
                    torch.testing.assert_close(got, expected)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not failures, failures[0]


def test_a_program_may_be_called_while_it_is_made():
    """As a signal handler or a finalizer may do."""

    def make(n):
        return (lambda n: f"static {n}"), f"made after {found(n)}"

    found, reasons = dispatcher(make)
    assert [found(1) for _ in range(3)][-1] == "static 1"
    assert reasons == ["made after 1"]


@pytest.mark.parametrize("specialize", [None, True])
def test_no_call_waits_for_a_compilation_of_another_thread(specialize):
    compiled = tofuse.compile(lambda x: (x * 2 + 1).sin(), hand_back=False, specialize=specialize)
    for n in (64, 65, 66):  # of constant sizes, then for all sizes
        compiled(torch.ones(n))
    held, release = threading.Event(), threading.Event()
    found: list[torch.Tensor] = []

    def compile_something_else():
        with compile_lock:  # as Dynamo holds it
            held.set()
            release.wait(60)

    def call():
        x, end = torch.arange(200_000.0), time.perf_counter() + 2
        while time.perf_counter() < end:  # longer than the compilation of a variant takes
            found[:] = [compiled(x)]

    other, caller = threading.Thread(target=compile_something_else), threading.Thread(target=call)
    other.start()
    held.wait()
    caller.start()
    caller.join(30)
    waits = caller.is_alive()
    release.set()
    other.join()
    caller.join()
    assert not waits
    torch.testing.assert_close(found[0], (torch.arange(200_000.0) * 2 + 1).sin())
