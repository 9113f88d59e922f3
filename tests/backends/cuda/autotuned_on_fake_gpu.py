"""Kernels on a GPU that are tuned by a fake clock; see test_backend.py."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tests.support.fake_gpu import FakeGpu, compile_for
from tofuse.backends.cuda.triton.cubin import RegisterUsage
from tofuse.backends.cuda.triton.load import LaunchSpec, TritonModule
from tofuse.driver import tune_partition
from tofuse.driver.choice import FUSED, Choice
from tofuse.errors import CompileError
from tofuse.ir.tile import Tile, Tiling, TilingChoice

__all__ = ["compile_for"]  # a fixture

pytestmark = [
    pytest.mark.usefixtures("fresh_dynamo"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def softmax(x):
    return x.sin().softmax(-1)


def warps_decide(spec: LaunchSpec, text: str, instances: int) -> float:
    return 100.0 if spec.warps == 8 else 200.0


def loops_decide(spec: LaunchSpec, text: str, instances: int) -> float:
    return 100.0 if "tl.range" in text else 200.0


def reasons(reports) -> list[str]:
    return [r.why for report in reports for r in report.regions if r.executor == "triton"]


@pytest.mark.parametrize(
    ("time", "chosen"), [(warps_decide, "warps 8"), (loops_decide, "loop i1/64")]
)
def test_the_fastest_tiling_is_chosen_and_kept_on_disk(compile_for, tmp_path, time, chosen):
    x = torch.randn(40, 123)
    gpu = FakeGpu(time)
    run, reports = compile_for(gpu, softmax, tune="measure", cache_dir=tmp_path)
    torch.testing.assert_close(run(x), softmax(x), rtol=1e-4, atol=1e-5)
    (why,) = reasons(reports)
    assert "measured: fused (" in why and chosen in why
    assert "100 µs, fused 200 µs, aten 1 s" in why and "slower candidates" in why
    assert chosen in repr(reports[0].kernels[0].nest) and gpu.timed > 5
    assert not any("tune" in note for note in reports[0].notes)
    again = FakeGpu(time)
    run, reports = compile_for(again, softmax, tune="measure", cache_dir=tmp_path)
    torch.testing.assert_close(run(x), softmax(x), rtol=1e-4, atol=1e-5)
    assert reasons(reports) == [why] and again.timed == 0 and len(again.launches) == 1


def test_pytorch_runs_a_region_that_it_runs_faster(compile_for, tmp_path):
    x = torch.randn(40, 123)
    gpu = FakeGpu(operators_us=0.5)
    run, reports = compile_for(gpu, softmax, tune="measure", cache_dir=tmp_path)
    torch.testing.assert_close(run(x), softmax(x))
    before = len(gpu.launches)
    torch.testing.assert_close(run(x), softmax(x))
    assert len(gpu.launches) == before and reasons(reports) == []
    assert any("measured: aten 0.5 µs, fused 1 µs" in note for note in reports[0].notes)


def test_candidates_that_spill_are_not_timed(compile_for, tmp_path):
    def usage(spec: LaunchSpec, text: str) -> RegisterUsage:
        return RegisterUsage(32, 64 if spec.warps == 8 else 0)

    gpu = FakeGpu(warps_decide, usage=usage)
    run, reports = compile_for(gpu, softmax, tune="measure", cache_dir=tmp_path / "spills")
    run(torch.randn(40, 123))
    assert "warps 8" not in reasons(reports)[0]
    gpu = FakeGpu(warps_decide, usage=lambda spec, text: RegisterUsage(32, 64))
    run, reports = compile_for(gpu, softmax, tune="measure", cache_dir=tmp_path / "all")
    run(torch.randn(40, 123))
    assert "warps 8" in reasons(reports)[0], "the heuristics' choice spills as much"


def test_candidates_that_do_not_compile_are_left_out(compile_for, tmp_path, monkeypatch):
    def binary(module: TritonModule, index: int, divisible: tuple[bool, ...]):
        if module.specs[index].warps == 8:
            raise CompileError("out of resources")
        return compiled(module, index, divisible)

    compiled = TritonModule.binary
    monkeypatch.setattr(TritonModule, "binary", binary)
    gpu = FakeGpu(warps_decide)
    run, reports = compile_for(gpu, softmax, tune="measure", cache_dir=tmp_path)
    x = torch.randn(40, 123)
    torch.testing.assert_close(run(x), softmax(x), rtol=1e-4, atol=1e-5)
    assert "warps 8" not in reasons(reports)[0]


class WrongGpu(FakeGpu):
    """Launches of eight warps write nothing."""

    def _run(self, function, instances, words):
        if self.clock is not None or self.modules[function][2].warps != 8:
            super()._run(function, instances, words)


def test_a_candidate_with_wrong_results_is_left_out_with_a_note(compile_for, tmp_path):
    gpu = WrongGpu(warps_decide)
    run, reports = compile_for(gpu, softmax, tune="measure", cache_dir=tmp_path)
    x = torch.randn(40, 123)
    torch.testing.assert_close(run(x), softmax(x), rtol=1e-4, atol=1e-5)
    assert "warps 8" not in reasons(reports)[0]
    assert any("warps 8" in note and "is wrong in" in note for note in reports[0].notes)


def test_slow_candidates_are_timed_less_often(compile_for, tmp_path):
    counts: dict[int, int] = {}

    def time(spec: LaunchSpec, text: str, instances: int) -> float:
        counts[spec.warps] = counts.get(spec.warps, 0) + 1
        return 500.0 / spec.warps

    gpu = FakeGpu(time)
    run, reports = compile_for(gpu, torch.exp, tune="measure", cache_dir=tmp_path)
    run(torch.randn(5000))
    assert "warps 8" in reasons(reports)[0]
    assert counts[8] > counts[2]


def norm(x, w, b):
    return F.gelu(F.layer_norm(x, (70,), w, b)).sum(0)


def layers(x, w):
    for k in range(3):
        x = F.dropout(F.layer_norm(x, (64,), w), 0.5) @ torch.full((64, 64), 0.1 * k)
    return x


@pytest.mark.parametrize("time", [warps_decide, loops_decide])
def test_tuned_training_steps_are_as_in_eager(compile_for, tmp_path, time: Callable[..., float]):
    made = [torch.randn(33, 70), torch.randn(70), torch.randn(70)]
    found = []
    compiled, reports = compile_for(FakeGpu(time), norm, tune="measure", cache_dir=tmp_path)
    for run in (norm, compiled):
        inputs = [t.clone().requires_grad_() for t in made]
        result = run(*inputs)
        result.backward(result.detach().cos())
        found.append([result, *(t.grad for t in inputs)])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
    assert [report.phase for report in reports] == ["forward", "backward"]
    assert all(why.startswith("measured: ") for why in reasons(reports))


def test_layers_that_share_a_kernel_are_timed_once(compile_for, tmp_path):
    gpu = FakeGpu(warps_decide)
    run, reports = compile_for(gpu, layers, tune="measure", cache_dir=tmp_path)
    run(torch.randn(8, 64), torch.randn(64))
    tuned = [why for why in reasons(reports) if why.startswith("measured: ")]
    files = [file.read_text() for file in tmp_path.rglob("choice-*/*.json")]
    stored = [text for text in files if "fused" in text]  # others are of products
    assert len(stored) == len({r.nest for report in reports for r in report.kernels}) < len(tuned)


def test_without_memory_a_kernel_is_not_tuned(compile_for, tmp_path, monkeypatch):
    def no_memory(gpu: FakeGpu, calls: object):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(FakeGpu, "elapsed_us", no_memory)
    run, reports = compile_for(FakeGpu(), softmax, tune="measure", cache_dir=tmp_path)
    x = torch.randn(40, 123)
    torch.testing.assert_close(run(x), softmax(x), rtol=1e-4, atol=1e-5)
    assert reasons(reports) == ["not measured"]
    assert any("no memory for its candidates" in note for note in reports[0].notes)


def test_a_tuned_optimiser_step_is_as_few_launches(compile_for, tmp_path):
    gpu, states = FakeGpu(warps_decide), []
    for compiled in (False, True):
        parameters = [torch.linspace(-1, 1, n).requires_grad_() for n in (16, 640, 48, 7, 21)]
        optimiser = torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.1)
        step, before = optimiser.step, 0
        for k in range(3):
            for p in parameters:
                p.grad = p.detach().sin() * (k + 1)
            if k == 1 and compiled:
                step, _ = compile_for(gpu, optimiser.step, tune="measure", cache_dir=tmp_path)
            before = len(gpu.launches)
            step()
        states.append(parameters)
    torch.testing.assert_close(*states)
    assert gpu.timed and 0 < len(gpu.launches) - before <= 4


def test_a_choice_that_is_illegal_in_the_program_gives_way_to_the_heuristics(
    compile_for, tmp_path, monkeypatch
):
    illegal = TilingChoice((Tiling((Tile(("i9",), 16, "grid"),), 4),))

    def choose(context, build_program):
        return {r: Choice(FUSED, illegal) for r in context.partition.regions if not r.library}

    monkeypatch.setattr(tune_partition, "measured_choices", choose)
    run, reports = compile_for(FakeGpu(), softmax, tune="measure", cache_dir=tmp_path)
    x = torch.randn(40, 123)
    torch.testing.assert_close(run(x), softmax(x), rtol=1e-4, atol=1e-5)
    assert not [note for note in reports[0].notes if "PyTorch" in note]
