"""Calls that eager runs as fast are handed back to it, and others are not."""

import sys
import threading
import time
from contextlib import suppress
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tofuse
from tofuse.config import make_config
from tofuse.cost.call_overhead import Faster, Prediction
from tofuse.driver.compile import compile_target
from tofuse.driver.context import make_context
from tofuse.driver.hand_back import (
    SEEN,
    TIMED_CALLS,
    WARM_UP,
    HandBack,
    Trial,
    hand_back,
    kind_of_call,
)

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Counted(nn.Module):
    """A module that counts how often Python runs its `forward`."""

    def __init__(self, function):
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.randn(8))

    def forward(self, x, scale=1.0):
        calls.append(tuple(x.shape)) if not torch.compiler.is_compiling() else None
        return self.function(x, self.weight) * scale


calls: list[tuple[int, ...]] = []


def ran_in_eager(compiled, *args, **kwargs):
    """Call twice; return whether the second call ran Python."""
    with torch.no_grad():
        compiled(*args, **kwargs)
        calls.clear()
        compiled(*args, **kwargs)
    return bool(calls)


def chain(x, w):
    for _ in range(40):
        x = (x * w).sin()
    return x


CASES = {
    "a small call": (lambda x, w: x * w, (4, 8), True),
    "a library call": (lambda x, w: torch.linalg.qr(x)[0], (64, 8), True),
    "many operations": (chain, (4, 8), False),
    "a large call": (lambda x, w: (x * w).sin(), (100_000, 8), False),
}


@pytest.mark.broad(1)
@pytest.mark.parametrize("name", CASES)
def test_kinds_of_calls(name):
    function, shape, expected = CASES[name]
    module, x = Counted(function), torch.randn(shape)
    compiled = tofuse.compile(module, hand_back=True)
    assert ran_in_eager(compiled, x, 2.0) == expected
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, 2.0), module(x, 2.0), rtol=1e-2, atol=1e-2)
    assert not ran_in_eager(tofuse.compile(Counted(function), hand_back=False), x)


def test_a_kind_has_shapes_dtypes_numbers_and_grad_mode():
    compiled = tofuse.compile(Counted(lambda x, w: x * w), hand_back=True, dynamic=False)
    assert ran_in_eager(compiled, torch.randn(4, 8))
    assert not ran_in_eager(compiled, torch.randn(100_000, 8))
    assert ran_in_eager(compiled, torch.randn(4, 8))
    calls.clear()
    compiled(torch.randn(4, 8)).sum().backward()  # recorded by autograd
    assert not calls and compiled.weight.grad is not None


def test_of_many_calls_some_are_looked_at():
    module = Counted(lambda x, w: ((x * w).relu() + 1) * 2 - x)
    compiled = tofuse.compile(module, hand_back=True, dynamic=False)
    small, large = torch.randn(4, 8), torch.randn(1_000_000, 8)
    with torch.no_grad():
        for _ in range(40):
            compiled(small)
        for _ in range(SEEN):
            compiled(large)
        calls.clear()
        compiled(large)
    assert not calls


@pytest.mark.parametrize("slow", ["eager", "compiled", "neither"])
def test_calls_that_may_win_or_lose_are_timed_in_turn(slow):
    record, reported, ran = HandBack(), list[str](), list[str]()

    def run(name, x):
        ran.append(name)
        time.sleep(2e-3 if name == slow else 1e-3)
        if name == "compiled" and not record.predictions:
            record.predictions.append(Prediction(Faster.UNKNOWN))

    call = hand_back(partial(run, "compiled"), partial(run, "eager"), record, reported.append)
    for _ in range(1 + 2 * (TIMED_CALLS + WARM_UP)):
        call(torch.ones(2))
    assert ran.count("eager") == ran.count("compiled") - 1 == TIMED_CALLS + WARM_UP
    call(torch.ones(2))
    assert ran[-1] == ("eager" if slow == "compiled" else "compiled")
    assert len(reported) == (slow == "compiled")
    call(torch.ones(3))
    assert ran[-1] == "compiled" and not record.trials


@pytest.mark.parametrize("calls_in_a_step", [1, 2])
@pytest.mark.parametrize("slow", ["eager", "compiled", "neither"])
def test_training_steps_are_timed_from_call_to_call(slow, calls_in_a_step):
    record, ran = HandBack(), list[str]()

    def run(name, x):
        ran.append(name)
        if name == "compiled" and not record.predictions:
            record.predictions.append(Prediction(Faster.UNKNOWN, trains=True))

    call = hand_back(partial(run, "compiled"), partial(run, "eager"), record, print)
    while len(ran) < 1 + 2 * (TIMED_CALLS + WARM_UP):
        for _ in range(calls_in_a_step):
            call(torch.ones(2, requires_grad=True))
        for name in ran[-calls_in_a_step:]:  # the backward
            time.sleep(3e-3 if name == slow else 1e-3)
    assert abs(ran.count("eager") - ran.count("compiled")) <= calls_in_a_step
    assert not record.trials
    call(torch.ones(2, requires_grad=True))
    if calls_in_a_step == 1:
        assert ran[-1] == ("eager" if slow == "compiled" else "compiled")
    elif slow != "compiled":
        assert ran[-1] == "compiled"


@pytest.mark.parametrize("trains", [False, True])
def test_threads_share_a_trial(trains):
    record, errors = HandBack(), list[BaseException]()
    interval = sys.getswitchinterval()

    def run(name, x):
        if name == "compiled" and len(x) not in seen:
            seen.add(len(x))
            record.predictions.append(Prediction(Faster.UNKNOWN, trains=trains))

    seen: set[int] = set()
    call = hand_back(partial(run, "compiled"), partial(run, "eager"), record, lambda text: None)

    def work():
        try:
            for k in range(3000):
                call(torch.ones(2 + k // 60, requires_grad=True))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not errors


def test_other_work_between_training_steps_is_not_counted():
    """Such as an evaluation in between: a call of another kind ends the time."""
    record = HandBack()

    def run(name, x):
        if not record.predictions:
            record.predictions.append(Prediction(Faster.UNKNOWN, trains=True))

    call = hand_back(partial(run, "compiled"), partial(run, "eager"), record, print)
    for _ in range(2 * (WARM_UP + TIMED_CALLS)):
        call(torch.ones(2, requires_grad=True))
        with torch.no_grad():
            call(torch.ones(3))
    assert not record.kinds
    assert all(not t.eager and not t.compiled for t in record.trials.values())


@pytest.mark.broad(1)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("network", [nn.LSTM, nn.GRU, nn.RNN])
def test_calls_whose_graph_breaks_leave_nothing_to_compile_are_timed(network, training):
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network(8, 8)

        def forward(self, x):
            return self.network(x)[0][-1]

    context = make_context(make_config({"hand_back": True}))
    module, x, y = Last(), torch.randn(3, 2, 8), torch.randn(5, 2, 8)
    compiled = compile_target(module, context)
    with torch.set_grad_enabled(training):
        with torch.compiler.set_stance("force_eager"):
            compiled(x)
        assert not context.hand_back.trials  # Dynamo has not tried
        for argument in (x, y):
            torch.testing.assert_close(compiled(argument), module(argument))
        assert len(context.hand_back.trials) == 2
        for _ in range(2 * (WARM_UP + TIMED_CALLS) + 1):
            torch.testing.assert_close(compiled(x), module(x))
        assert len(context.hand_back.trials) == 1


def test_training_of_lone_library_calls_is_handed_back():
    compiled = tofuse.compile(Counted(lambda x, w: x @ x.T), hand_back=True)
    x = torch.randn(64, 64, requires_grad=True)
    for _ in range(2):
        calls.clear()
        compiled(x).sum().backward()
    assert calls


def test_a_program_from_disk_is_handed_back_too(tmp_path):
    for _ in range(2):
        torch._dynamo.reset()
        compiled = tofuse.compile(Counted(lambda x, w: x * w), hand_back=True, cache_dir=tmp_path)
        assert ran_in_eager(compiled, torch.randn(4, 8))


def test_what_looks_into_calls_gets_them_all():
    x = torch.randn(4, 8)
    for options in ({"verify": True}, {"tune": "measure"}, {"fuel": 3}):
        module = Counted(lambda x, w: x * w)
        assert not ran_in_eager(tofuse.compile(module, hand_back=True, **options), x)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_repeats_what_it_ran(reentrant):
    def dropped(x):
        return nn.functional.dropout(x.sin() * 2, 0.5)

    compiled = tofuse.compile(dropped, hand_back=True)
    for _ in range(3):
        x = torch.ones(64, requires_grad=True)
        y = checkpoint(compiled, x, use_reentrant=reentrant)
        y.sum().backward()
        assert x.grad is not None and torch.equal(x.grad.bool(), y.bool())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_arguments_that_are_no_plain_tensors():
    compiled = tofuse.compile(lambda x: x + 1, hand_back=True)
    compiled(torch.ones(3))
    compiled(torch.ones(3))
    rows = torch.export.Dim("rows", min=2)
    module = nn.Module()
    module.forward = lambda x: compiled(x)
    torch.export.export(module, (torch.ones(4),), dynamic_shapes=({0: rows},))
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.strided)
    assert kind_of_call((nested,), {}) is None


def test_errors_of_compiled_calls_end_no_trial():
    record, x = HandBack([Prediction(Faster.UNKNOWN)]), torch.ones(2)
    record.trials[kind_of_call((x,), {})] = Trial()

    def fail(x):
        raise IndexError

    call = hand_back(fail, lambda x: x, record, print)
    for _ in range(60):
        with suppress(IndexError):
            call(x)
    assert not record.kinds


def test_a_compiled_function_inside_of_another_is_inlined():
    inner = tofuse.compile(Counted(lambda x, w: x * w), hand_back=True)
    outer = tofuse.compile(lambda x: inner(x) + inner(x).sin(), hand_back=True, fullgraph=True)
    x = torch.randn(4, 8)
    with torch.no_grad():
        inner(x)
        torch.testing.assert_close(outer(x), inner(x) + inner(x).sin())
