"""Compile programs for a GPU without one: executors, notes, and the plan."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.fake_gpu import FakeGpu
from tofuse.backends.cuda.cost.gpu_machine import DEFAULT_GPU
from tofuse.config import make_config
from tofuse.driver.compile_graph import compile_text
from tofuse.report.model import GraphReport

MIXED = """graph(x: f32[4096,4096]@cuda:0, s: f32[3000]) {
  v0 = exp(x) : f32[4096,4096]@cuda:0
  v1 = sum(v0, dims=(1), keepdim=false, dtype=f32) : f32[4096]@cuda:0
  v2 = exp(s) : f32[3000]
  v3 = neg(v2) : f32[3000]
  return v1, v3
}"""

BETWEEN_CALLS = """graph(x: f32[512,512]@cuda:0) {
  v0 = exp(x) : f32[512,512]@cuda:0
  v1 = opaque(v0, v0, target='aten.mm.default', args='$0, $1') : f32[512,512]@cuda:0
  v2 = mul(v1, v0) : f32[512,512]@cuda:0
  return v2
}"""


@pytest.fixture
def compiled(tmp_path: Path):
    def compile_mixed(text: str = MIXED, **options) -> GraphReport:
        config = make_config({"strict": True, "cache_dir": tmp_path, **options})
        with FakeGpu().in_place():
            (report,) = compile_text(text, config).findings.reports
        return report

    return compile_mixed


def executor_by_ops(report: GraphReport) -> Mapping[tuple[str, ...], str]:
    return {r.ops: r.executor for r in report.regions}


def test_each_device_has_its_kernels(compiled):
    report = compiled()
    assert executor_by_ops(report) == {("exp", "sum"): "triton", ("exp", "neg"): "llvm"}
    gpu = next(r for r in report.regions if r.executor == "triton")
    copy_us = 4 * (4096 * 4096 + 4096) / DEFAULT_GPU.memory_rate / 1e3
    assert gpu.predicted_us == pytest.approx(DEFAULT_GPU.launch_us + copy_us, rel=0.1)
    assert gpu.executor_label == "triton" and "tl.store" in "".join(
        k.source for k in report.kernels
    )
    assert not report.notes
    assert set(executor_by_ops(compiled(executors=("aten",))).values()) == {"aten"}


def test_no_kernel_is_timed_while_a_graph_is_captured(tmp_path: Path):
    gpu = FakeGpu(recording=[])
    config = make_config({"strict": True, "cache_dir": tmp_path, "tune": "measure"})
    with gpu.in_place():
        (report,) = compile_text(MIXED, config).findings.reports
    assert executor_by_ops(report)["exp", "sum"] == "triton" and not gpu.timed
    assert [n for n in report.notes if "while a CUDA graph is captured" in n]
    (why,) = [r.why for r in report.regions if r.executor == "triton"]
    assert why == "not measured"


def test_kernels_of_each_device_are_verified(compiled):
    report = compiled(verify=True)
    assert executor_by_ops(report) == {("exp", "sum"): "triton", ("exp", "neg"): "llvm"}
    assert not report.notes
    assert sum("call region" in line for line in report.plan.splitlines()) == 2


def test_fuel_counts_merges_on_a_gpu(compiled):
    assert ("exp", "sum") not in executor_by_ops(compiled(fuel=0))


def test_a_kernel_on_a_gpu_overwrites_a_dying_operand(compiled):
    lines = [line.strip() for line in compiled(BETWEEN_CALLS).plan.splitlines()]
    assert sum("allocate" in line for line in lines) == 1  # for exp
    (launch,) = (line for line in lines if line.startswith("launch") and "mul" in line)
    read, written = launch.split("(")[1].rstrip(")").split(", ")[:2], launch.rstrip(")").split(", ")
    assert written[-1] in read


EQUAL_TEXTS = """graph(x: f32[64,1024]@cuda:0, y: f32[128,1024]@cuda:0, z: f32[128,1024]@cuda:1) {
  v0 = sum(x, dims=(1), keepdim=false, dtype=f32) : f32[64]@cuda:0
  v1 = sum(y, dims=(1), keepdim=false, dtype=f32) : f32[128]@cuda:0
  v2 = sum(z, dims=(1), keepdim=false, dtype=f32) : f32[128]@cuda:1
  return v0, v1, v2
}"""


def test_kernels_of_other_sizes_and_devices_have_launchers_of_their_own(compiled):
    """Their texts are equal: neither sizes without a mask nor devices stand there."""
    report = compiled(EQUAL_TEXTS)
    assert len({k.source for k in report.kernels}) == 1
    launches = [line for line in report.plan.splitlines() if line.strip().startswith("launch")]
    assert len({line.split()[1] for line in launches}) == 3
