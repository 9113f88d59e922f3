"""Autotuning: the fastest candidate wins, is stored on disk, and is never slower than PyTorch."""

import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.eager import assert_as_eager
from tests.support.kernels import kernel
from tofuse.analysis.alias import AliasAnalysis
from tofuse.backends.cpu.backend import CpuBackend
from tofuse.backends.cpu.runtime.cpu_timing import interleaved_us
from tofuse.backends.cpu.schedule.choose_schedule import choose_schedule
from tofuse.backends.cpu.schedule.schedule_variants import schedule_variants
from tofuse.disk_store import Store
from tofuse.driver import autotune, autotune_program, choice
from tofuse.driver.choice import ATEN, FUSED, SPLIT, Choice
from tofuse.driver.isolate_region import isolate_region
from tofuse.errors import OptionError
from tofuse.fusion.lower.lower_region import lower_region
from tofuse.fusion.partition.region_split import cut_positions, split_region
from tofuse.graph_partition import Partition
from tofuse.ir.parse_graph import parse_graph as parse
from tofuse.ir.parse_schedule import parse_schedule
from tofuse.ir.region import Region
from tofuse.ir.schedule import Target

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


# measurements, but not accurate ones
choose = partial(choice.choose, time_calls=partial(interleaved_us, seconds=0.001))


def give_times(monkeypatch, times):
    """Let calls take these times, both those of regions and those of programs."""
    monkeypatch.setattr(CpuBackend, "time_calls", lambda self, steps: times(steps))
    monkeypatch.setattr(autotune_program, "interleaved_us", lambda steps, seconds: times(steps))


def sleeper(seconds, log=None):
    def step():
        if log is not None:
            log.append(seconds)
        time.sleep(seconds)

    return lambda: step


def f(x, w):
    return (x * torch.tanh(w)).softmax(-1).sum(0)


X, W = torch.randn(20, 48), torch.randn(48)


def test_fastest_candidate_wins_and_is_stored(tmp_path):
    fast = Choice(FUSED, parse_schedule("order i; parallel 0; vector 4; unroll 2"))
    log: list[float] = []
    candidates = [
        (Choice(), sleeper(0.004, log)),
        (fast, sleeper(0.001, log)),
        (Choice(ATEN), sleeper(0.003, log)),
    ]
    won = choose(candidates, ("key",), Store(tmp_path))
    assert won == fast and dict(won.times)[fast.name] < dict(won.times)[FUSED]
    assert "aten" in won.why and "us" in won.why
    log.clear()
    assert choose(candidates, ("key",), Store(tmp_path)) == fast and not log
    assert choose(candidates[::2], ("key",), Store(tmp_path)).kind == ATEN, (
        "the stored choice is not a candidate here"
    )
    assert choose(candidates, ("another",), Store(tmp_path)) == fast and log


def test_default_kernel_wins_unless_another_is_clearly_faster(tmp_path):
    candidates = [(Choice(), sleeper(0)), (Choice(ATEN), sleeper(0))]
    chosen = choice.choose(candidates, ("key",), Store(tmp_path), lambda steps: [100.0, 98.0])
    assert chosen.kind == FUSED


def test_failing_candidates_are_skipped(tmp_path):
    def fails():
        raise RuntimeError("no")

    good = (Choice(), sleeper(0.002))
    bad = [(Choice(ATEN), lambda: fails), (Choice(SPLIT, None, 1), lambda: None)]
    assert choose([good, *bad], ("a",), Store(tmp_path)).times[0][0] == FUSED
    first = [(Choice(), lambda: fails), (Choice(ATEN), sleeper(0))]
    assert choose(first, ("b",), Store(tmp_path)) == Choice(), (
        "nothing is timed if the first candidate fails"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"kind": "fused"}',
        "null",
        '{"kind": 3, "schedule": "x", "cut": 0, "times": []}',
    ],
)
def test_damaged_choices_are_measured_again(tmp_path, text):
    store = Store(tmp_path)
    store.put(choice.KIND, (choice.CANDIDATES_VERSION, "key"), text)
    assert choose([(Choice(), sleeper(0))], ("key",), store).times


def test_tuned_programs_are_correct_and_report_measured_times(tmp_path):
    report = tofuse.explain(f, tune="measure", cache_dir=tmp_path)(X, W)
    assert all("measured: " in r.why for r in report.regions)
    assert all(ATEN in r.why for r in report.regions), "PyTorch's time is always reported"
    options = {"tune": "measure", "cache_dir": tmp_path}
    assert_as_eager(f, X, W, options=options)
    leaf = X.clone().requires_grad_()
    assert_as_eager(f, leaf, W, options=options)


@pytest.mark.parametrize("grad", [False, True])
def test_each_timed_run_begins_with_the_same_arguments(tmp_path, grad):
    """Doubled again and again, they would overflow, and the index would be out of bounds."""

    def program(x):
        x.flatten().mul_(1e9)
        return x.scatter(1, (x.detach().sum(1, keepdim=True) * 0).long(), 0)

    options = {"tune": "measure", "cache_dir": tmp_path}
    x = torch.ones(3, 4)
    y = x.requires_grad_().clone() if grad else x
    compiled = tofuse.compile(program, **options)
    torch.testing.assert_close(compiled(y.clone()), program(y.clone()))


def sin_softmax(x):
    return (x.sin() + 1).softmax(-1)


SCRIPT = """
import sys, torch, tofuse
from tofuse.driver import autotune, choice
def fail(*args):
    raise AssertionError("measured again")
choice.measure_choice = autotune.measure_choice = fail
torch.set_num_threads(int(sys.argv[2]))
def sin_softmax(x):
    return (x.sin() + 1).softmax(-1)
report = tofuse.explain(sin_softmax, cache_dir=sys.argv[1])(torch.randn(9, 33))
print([(r.executor, r.why) for r in report.regions])
"""


def test_another_process_reads_the_stored_choice(tmp_path, monkeypatch):
    """PyTorch is faked to be the fastest, so that the choice is not the default."""
    give_times(monkeypatch, lambda steps: [9.0 - k for k in range(len(steps))])
    report = tofuse.explain(sin_softmax, tune="measure", cache_dir=tmp_path)(torch.randn(9, 33))
    assert [r.executor for r in report.regions] == ["aten"]
    command = ["env", "TOFUSE_TUNE=measure", sys.executable, "-c", SCRIPT, str(tmp_path)]
    command.append(str(torch.get_num_threads()))
    second = subprocess.run(command, capture_output=True, text=True, check=True)
    assert second.stdout.strip() == str([(r.executor, r.why) for r in report.regions])


@pytest.mark.parametrize("kind", [ATEN, SPLIT, FUSED])
def test_every_choice_gives_the_same_results(tmp_path, monkeypatch, kind):
    chosen = []

    def pick(candidates, key, store, time_calls):
        choices = [c for c, build in candidates if c.kind == kind and build() is not None]
        chosen.append(choices[-1] if choices else Choice())
        return replace(chosen[-1], times=(("x", 1.0),))

    monkeypatch.setattr(autotune, "measure_choice", pick)
    monkeypatch.setattr("tofuse.driver.autotune_program.choose", lambda *args: Choice())
    report = tofuse.explain(f, tune="measure", cache_dir=tmp_path)(X, W)
    assert {c.kind for c in chosen} == {kind}
    executors = [r.executor for r in report.regions]
    assert len(executors) == (2 if kind == SPLIT else 1)
    assert set(executors) == {"aten" if kind == ATEN else "llvm"}
    torch._dynamo.reset()
    compiled = tofuse.compile(f, tune="measure", cache_dir=tmp_path)
    torch.testing.assert_close(compiled(X, W), f(X, W))


def test_a_program_slower_than_pytorch_falls_back(tmp_path, monkeypatch):
    give_times(monkeypatch, lambda steps: [20.0, *[1.0 + k for k in range(len(steps) - 1)]])
    report = tofuse.explain(f, tune="measure", cache_dir=tmp_path)(X, W)
    (note,) = [n for n in report.notes if "whole program" in n]
    assert "the compiled program is slower; measured: aten 1 µs, fused 20 µs" in note


def test_autotuning_a_program_has_no_side_effects(tmp_path, monkeypatch):
    def g(x, w, counter):
        counter.add_(1)
        return torch.nn.functional.dropout(x * w, 0.5) + torch.rand(())

    timed_kinds = []

    def run_all(candidates, key, store, time_calls):
        for timed, build in candidates:
            build()()
            timed_kinds.append(timed.kind)
        return Choice()

    monkeypatch.setattr("tofuse.driver.autotune_program.choose", run_all)
    x, counter = X.clone().requires_grad_(), torch.zeros(())
    before = torch.get_rng_state()
    tofuse.compile(g, tune="measure", cache_dir=tmp_path)(x, W, counter).sum().backward()
    after = torch.get_rng_state()
    assert timed_kinds == [FUSED, ATEN]
    torch.set_rng_state(before)
    untuned = X.clone().requires_grad_()
    tofuse.compile(g)(untuned, W, counter).sum().backward()
    assert x.grad is not None and untuned.grad is not None
    assert counter.item() == 2 and torch.equal(x.grad, untuned.grad)
    assert torch.equal(torch.get_rng_state(), after)


def test_schedule_variants_are_legal_and_distinct():
    k = kernel("""kernel k(x: in f32, y: out f32) over i:20 j:48 {
  v0 = load x[(48)*i + j] : f32
  v1 = reduce sum<j> v0 : f32
  v2 = div v0 v1 of f32 : f32
  store y[(48)*i + j] v2 : f32
}""")
    chosen = choose_schedule(k, Target(16, 2))
    variants = [nest.schedule for nest in schedule_variants(k, chosen)]
    assert len(variants) >= 4 and chosen not in variants and len(set(variants)) == len(variants)


def test_cut_positions_have_computation_on_both_sides():
    graph = parse("""graph(x: f32[4,8]) {
  v0 = exp(x) : f32[4,8]
  v1 = permute(v0, dims=(1, 0)) : f32[8,4]
  v2 = neg(v1) : f32[8,4]
  v3 = reshape(v1, shape=(32,)) : f32[32]
  v4 = sin(v3) : f32[32]
  return v0, v2, v4
}""")
    outputs = tuple(v for v in graph.outputs if v is not None)
    region, storage = Region("r", graph.ops, outputs), AliasAnalysis(graph).memrefs
    assert cut_positions(region) == (1, 2, 3, 4)
    parts = split_region(region, storage, 2)
    assert parts is not None
    head, tail = parts
    assert [v.name for v in head.outputs] == ["v0"]
    assert [v.name for v in tail.outputs] == ["v2", "v4"]
    assert split_region(region, storage, 4) is None, "no strides express v3"


def test_isolated_region_keeps_views_of_one_tensor():
    graph = parse("""graph(x: f32[6,8]) {
  v0 = reshape(x, shape=(6, 2, 4)) : f32[6,2,4]
  v1 = sum(v0, dims=(1, 2)) : f32[6]
  v2 = broadcast(v1, dims=(0,), shape=(6, 8)) : f32[6,8]
  v3 = mul(x, v2) : f32[6,8]
  return v3
}""")
    storage = AliasAnalysis(graph).memrefs
    views = [op for op in graph.ops if op.kind == "reshape"]
    outputs = tuple(v for v in graph.outputs if v is not None)
    region = Region("r", tuple(op for op in graph.ops if op not in views), outputs)
    assert len(region.inputs) == 2
    isolated = isolate_region(region, Partition(graph, (region,), AliasAnalysis(graph), ()))
    assert [v.name for v in isolated.graph.inputs] == ["x"]
    assert (
        lower_region(isolated.regions[0], isolated.aliases.memrefs).kernel.axes
        == lower_region(region, storage).kernel.axes
    )


def test_invalid_option_raises():
    with pytest.raises(OptionError, match="tune must be 'off' or 'measure', not 'on'"):
        tofuse.compile(torch.sin, tune="on")


def test_programs_that_write_arguments_are_timed(tmp_path):
    def program(x, buffer, copied):
        buffer[0] = x.sum()
        copied.mul_(2)
        return torch.cdist(x, x), copied.sin()

    compiled = tofuse.compile(program, tune="measure", cache_dir=tmp_path)
    for _ in range(2):
        leaf = torch.randn(3, 4, requires_grad=True)
        gradients: list[torch.Tensor] = []
        for function in (compiled, program):
            x = leaf.detach().clone().requires_grad_()
            results = function(x, torch.zeros(3), x.clone())
            gradients += torch.autograd.grad([r.sum() for r in results], x)
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("columns", [2, 4])
def test_an_empty_result_beside_others(columns):
    """Loops of no iteration may not be around the stores of other results."""

    def program(x):
        y = F.layer_norm(x, x.shape[-1:])
        return torch.diff(y, dim=1), y

    x = torch.randn(5, 1, columns)
    compiled = tofuse.compile(program, tune="measure")
    for _ in range(3):
        torch.testing.assert_close(compiled(x), program(x), rtol=1e-4, atol=1e-4)
