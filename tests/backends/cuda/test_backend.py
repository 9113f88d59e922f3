"""Tune kernels on a GPU; and on a fake one, in another process for Triton's interpreter."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.eager import outcome
from tests.support.interpreted import needs_triton, run_interpreted
from tofuse.backends.cuda.backend import CudaBackend
from tofuse.backends.cuda.runtime.gpu_driver import CudaDriver
from tofuse.backends.cuda.schedule.build_tiles import build_tiles
from tofuse.backends.target import KernelRequest
from tofuse.ir.parse_kernel import parse_kernel
from tofuse.ir.rules import Reason
from tofuse.ir.tile import TileProgram


@needs_triton
def test_kernels_on_a_fake_gpu_are_tuned():
    run_interpreted(Path(__file__).with_name("autotuned_on_fake_gpu.py"))


STEP = """kernel k(t: in f32, x: in f32, y: out f32, u: out f32) over i0:5000 {
  v0 = load t[0] : f32
  v1 = add v0 1.0 of f32 : f32
  v2 = load x[i0] : f32
  v3 = mul v1 v2 of f32 : f32
  store y[i0] v3 : f32
  store u[0] v1 : f32
}"""


def scheduled(backend: CudaBackend, request: KernelRequest) -> TileProgram:
    (call,) = backend.schedule([request])
    assert not isinstance(call, Reason) and isinstance(call.scheduled, TileProgram)
    return call.scheduled


def test_results_that_bypass_the_caches_are_written():
    bypassing = STEP.replace("y: out f32", "y: nontemporal f32")
    for text in (STEP, bypassing):
        backend = CudaBackend("cuda:0")
        request = KernelRequest(parse_kernel(text), lambda kernel: kernel)
        (call,) = backend.schedule([request])
        assert not isinstance(call, Reason)
        assert backend.launch_facts(call).write_mask == (False, False, True, True)


@pytest.mark.parametrize("updates", [frozenset[tuple[str, str]](), frozenset({("t", "u")})])
def test_the_tiles_that_were_judged_good_are_not_built_again(updates: frozenset[tuple[str, str]]):
    """They are, if an update of a scalar takes a launch of its own."""
    backend, kernel = CudaBackend("cuda:0"), parse_kernel(STEP)
    assert backend.evaluate(kernel).rejection is None
    request = KernelRequest(kernel, lambda k: replace(k, name="named"), updates)
    found, kept = scheduled(backend, request), backend.evaluated[kernel].tiles
    assert kept is not None and (found.nests[0].loops is kept.nests[0].loops) == (not updates)
    own = replace(kernel, name="named")
    assert repr(found) == repr(build_tiles(own, backend.target, updates=updates))
    assert found.kernel.name == "named" and len(found.nests) == 1 + len(updates)


needs_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.usefixtures("fresh_dynamo"),
]


def on_gpu(test):
    for mark in needs_gpu:
        test = mark(test)
    return test


def norm(x, w, b):
    return F.gelu(F.layer_norm(x, (1024,), w, b))


def make_inputs(dtype: torch.dtype) -> list[torch.Tensor]:
    shapes = (4096, 1024), (1024,), (1024,)
    return [torch.randn(s, device="cuda", dtype=dtype, requires_grad=True) for s in shapes]


@on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{"tune": "measure"}, {"mode": "max-autotune"}])
def test_tuned_programs_are_as_in_eager(tmp_path: Path, dtype: torch.dtype, options):
    inputs = make_inputs(dtype)
    run = tofuse.compile(norm, cache_dir=tmp_path, **options)
    tolerance = 1e-4 if dtype is torch.float32 else 3e-2
    for _ in range(6):  # graphs are recorded after a few calls
        got, want = outcome(run, inputs, {}), outcome(norm, inputs, {})
        torch.testing.assert_close(got, want, rtol=tolerance, atol=10 * tolerance)


@on_gpu
def test_choices_are_kept_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    timed: list[int] = []
    elapsed = CudaDriver.elapsed_us

    def count(driver: CudaDriver, calls):
        timed.append(len(calls))
        return elapsed(driver, calls)

    monkeypatch.setattr(CudaDriver, "elapsed_us", count)
    inputs = make_inputs(torch.float32)
    state = torch.cuda.get_rng_state()
    first = tofuse.explain(norm, tune="measure", cache_dir=tmp_path)(*inputs)
    assert timed and torch.equal(torch.cuda.get_rng_state(), state)
    assert all(r.why.startswith("measured: ") for r in first.regions)
    timed.clear()
    torch._dynamo.reset()
    second = tofuse.explain(norm, tune="measure", cache_dir=tmp_path)(*inputs)
    assert not timed and [r.why for r in second.regions] == [r.why for r in first.regions]


@on_gpu
def test_the_clock_measures_a_copy():
    source = torch.ones(1 << 28, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    driver = CudaDriver()
    once, twice = driver.elapsed_us(
        [lambda: target.copy_(source), lambda: (target.copy_(source), target.copy_(source))]
    )
    assert 1.5 * once < twice < 2.5 * once
    assert once > 2 * (1 << 28) / 20e6, "20 TB/s are more than any GPU has"
