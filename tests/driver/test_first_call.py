"""The first call decides who runs a kind of call; the decision is kept, and reported."""

import threading

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tofuse.cache.programs import load_decision
from tofuse.config import make_config
from tofuse.cost.call_overhead import Faster, Prediction
from tofuse.driver import first_call, predict
from tofuse.driver.compile import compile_target
from tofuse.driver.function_record import make_record
from tofuse.report.model import Report

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.fixture
def uncertain(monkeypatch):
    """Nobody knows who is faster, so that the first call is timed."""
    monkeypatch.setattr(
        predict,
        "predict_faster",
        lambda captured, kernels, products, calls, own_us, machine, phase: Prediction(
            Faster.UNKNOWN, "unknown", trains=phase == "forward", leans_to_eager=True
        ),
    )


def times(monkeypatch, eager_us, compiled_us):
    """Let timing find these times; return what was timed."""
    timed: list[object] = []

    def fastest(calls, args):
        timed.append(args)
        return [eager_us, compiled_us]

    monkeypatch.setattr(first_call, "_fastest_us", fastest)
    return timed


def compiled(function, tmp_path, **options):
    options = {"hand_back": True, "cache_dir": tmp_path, **options}
    record = make_record(make_config(options))
    record.report = report = Report()  # without `explains`, the calls are as in a user's program
    return compile_target(function, record), record.hand_back, report.decisions


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def softmax(x):
    return torch.softmax(x * 3, -1)


@pytest.mark.parametrize("eager_us", [1.0, 1e6])
@pytest.mark.parametrize("grad", [False, True])
def test_the_first_call_is_timed_and_its_decision_is_kept(
    eager_us, grad, uncertain, monkeypatch, tmp_path
):
    x = torch.randn(16, 8, requires_grad=grad)
    timed = times(monkeypatch, eager_us, 1000.0)
    results = []
    for _ in range(2):  # processes
        torch._dynamo.reset()
        call, record, decisions = compiled(softmax, tmp_path)
        results += [call(x) for _ in range(4)]
        assert len(decisions) == len(timed) == 1
        assert f"took {eager_us:.0f} us in eager and 1000 us compiled" in decisions[0]
        assert bool(record.kinds) == (eager_us == 1.0) != record.runs_compiled
    assert all(torch.equal(r, results[0]) for r in results)
    if eager_us == 1.0:
        assert torch.equal(results[0], softmax(x))


def test_timing_has_no_effects(uncertain, tmp_path):
    seen: list[torch.Tensor] = []
    x = torch.randn(16, 8, requires_grad=True)
    y = x * 2
    for tensor in (x, y):
        tensor.register_hook(seen.append)
    call, _, decisions = compiled(softmax, tmp_path)
    state = torch.get_rng_state()
    result = call(y)
    assert "took" in decisions[0] and not seen and x.grad is None
    assert torch.equal(torch.get_rng_state(), state)
    result.sum().backward()
    assert len(seen) == 2


def written(x):
    x.mul_(2)
    return x.softmax(-1)


def drawn(x):
    return torch.multinomial(x.abs() * 2 + 1, 2)


@pytest.mark.parametrize("function", [written, drawn])
def test_programs_with_effects_are_not_timed(function, uncertain, monkeypatch, tmp_path):
    timed, x = times(monkeypatch, 1.0, 2.0), torch.randn(16, 8)
    call, _, decisions = compiled(function, tmp_path)
    expected = x.clone()
    torch.manual_seed(0)
    got = call(x)
    torch.manual_seed(0)
    assert torch.equal(got, function(expected)) and torch.equal(x, expected)
    assert not timed and "effects" in decisions[0]


def test_deterministic_algorithms_and_hooks_time_nothing(uncertain, monkeypatch, tmp_path):
    timed, x = times(monkeypatch, 1.0, 2.0), torch.randn(16, 8, requires_grad=True)
    torch.use_deterministic_algorithms(True)
    try:
        _, _, decisions = (made := compiled(softmax, tmp_path))
        made[0](x)
    finally:
        torch.use_deterministic_algorithms(False)
    assert not timed and "deterministic" in decisions[0]
    torch._dynamo.reset()
    call, _, decisions = compiled(softmax, tmp_path)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        call(x)
    assert not timed and "hooks" in decisions[0]


def test_other_sizes_of_a_symbolic_program_run_compiled(uncertain, monkeypatch, tmp_path):
    times(monkeypatch, 1.0, 1000.0)
    call, record, decisions = compiled(softmax, tmp_path, dynamic=True)
    inputs = [torch.randn(n, 8) for n in (16, 5, 33)]
    first = [call(x) for x in inputs]
    assert len(decisions) == len(record.kinds) == 1
    for _ in range(3):
        for x, y in zip(inputs, first, strict=True):
            assert torch.equal(call(x), y)
    assert torch.equal(first[0], softmax(inputs[0]))
    plain = tofuse.compile(softmax, dynamic=True, hand_back=False, cache_dir=tmp_path)
    assert torch.equal(plain(inputs[0]), plain(inputs[0]))


def test_of_several_threads_one_decides_for_all(uncertain, monkeypatch, tmp_path):
    both, answers = threading.Barrier(2), iter([[1.0, 9e9], [9e9, 1.0]])

    def fastest(calls, args):
        both.wait(30)
        return next(answers)

    monkeypatch.setattr(first_call, "_fastest_us", fastest)
    monkeypatch.setattr(first_call, "load_decision", lambda key, config: None)
    call, _, decisions = compiled(F.gelu, tmp_path)
    x, results = torch.randn(64), []
    program = first_call.FirstCall.__call__

    def twice(self, *args):
        other = threading.Thread(target=lambda: results.append(program(self, *args)))
        other.start()
        results.append(program(self, *args))
        other.join(30)
        return results[0]

    monkeypatch.setattr(first_call.FirstCall, "__call__", twice)
    call(x)
    assert len(decisions) == 1 and equal(*results)


def test_the_report_names_the_decision(tmp_path):
    options = {"hand_back": True, "cache_dir": tmp_path}
    small = tofuse.explain(lambda x: x.sin() * 2, **options)(torch.randn(8))
    (decision,) = small.decisions
    assert decision.startswith("eager runs calls of this kind: it takes ")
    assert decision in " ".join(str(small).split()) and small.kernels
    dropped = tofuse.explain(lambda x: F.dropout(x.sin(), 0.5), **options)(torch.randn(8))
    (decision,) = dropped.decisions
    assert decision.startswith("compiled code runs calls of this kind: its kernels draw random")


def test_a_decision_on_disk():
    assert load_decision(("no such program",), make_config({})) is None
