"""Which candidates of a GPU kernel are timed, from their machine code."""

from dataclasses import replace

import pytest

from tests.support.interpreted import needs_triton
from tests.support.tilings import parse_tiling_choice
from tofuse.backends.cpu.llvm.load import host_target
from tofuse.backends.cuda.cost.gpu_machine import gpu_machine
from tofuse.backends.cuda.prune_tilings import prune_tilings
from tofuse.backends.cuda.triton.cubin import RegisterUsage
from tofuse.backends.cuda.triton.load import TritonModule
from tofuse.backends.target import EmittedKernel
from tofuse.config import make_config
from tofuse.cost.machine_source import assumed_machine
from tofuse.driver.codegen import generate_kernels
from tofuse.driver.pipeline import codegen_context, cost_oracle, fuse
from tofuse.errors import CompileError
from tofuse.ir.parse_graph import parse_graph
from tofuse.ir.tile import TileProgram

pytestmark = needs_triton
H100 = gpu_machine("NVIDIA H100 80GB HBM3", 90, 132)
ROWS = """graph(x: f32[4096,16384]@cuda:0) {
  v0 = exp(x) : f32[4096,16384]@cuda:0
  v1 = sum(v0, dims=(1), keepdim=false, dtype=f32) : f32[4096]@cuda:0
  v2 = broadcast(v1, dims=(0,), shape=(4096, 16384)) : f32[4096,16384]@cuda:0
  v3 = sub(v0, v2) : f32[4096,16384]@cuda:0
  return v3
}"""


def generate(*choices: str) -> list[EmittedKernel]:
    """Return the kernel of one region for each choice; empty text stands for the heuristics."""
    config = make_config({"strict": True})
    target = host_target(1)
    oracle = cost_oracle(target, assumed_machine(target, config))
    part = fuse(parse_graph(ROWS), oracle=oracle, config=config)
    (region,) = part.regions
    context = codegen_context(part, oracle, config)
    found = []
    for text in choices:
        (kernel,), _ = generate_kernels({region: parse_tiling_choice(text)}, context)
        found.append(kernel.emitted)
    return found


def tilings(kernels: list[EmittedKernel]) -> list[str]:
    programs = [x.scheduled for x in kernels if isinstance(x.scheduled, TileProgram)]
    return [repr(p.choice) for p in programs]


def test_candidates_that_spill_or_do_not_compile_are_left_out():
    spills, fits = "grid i0/1; whole i1/16384; warps 1", "grid i0/1; whole i1/16384; warps 32"
    default, *variants = generate("", spills, fits)
    program, text = variants[1]
    assert isinstance(program, TileProgram)
    other = replace(program)  # modules are found by program
    broken = EmittedKernel(other, text.replace("tl.store", "tl.stored"))
    kept = prune_tilings(default, [*variants, broken], H100, threads=2)
    assert tilings(kept) == [fits]


@pytest.mark.parametrize(
    ("default_registers", "registers", "kept"),
    [(64, 64, True), (64, 255, False), (255, 255, True), (255, 64, True)],
)
def test_candidates_that_hold_few_warps_are_left_out(
    monkeypatch, default_registers: int, registers: int, kept: bool
):
    def usage(module: TritonModule, index: int, divisible: object) -> RegisterUsage:
        warps = module.specs[index].warps
        return RegisterUsage(registers if warps == 8 else default_registers, 0)

    monkeypatch.setattr(TritonModule, "register_usage", usage)
    default, variant = generate("", "grid i0/1; whole i1/16384; warps 8")
    assert bool(prune_tilings(default, [variant], H100, threads=2)) == kept
    few = replace(H100, multiprocessors=4096)  # each holds one instance, whatever its registers
    assert prune_tilings(default, [variant], few, threads=2) == [variant]


def test_without_the_tool_that_reads_registers_all_that_compile_are_kept(monkeypatch):
    def missing(module: TritonModule, index: int, divisible: object) -> RegisterUsage:
        raise CompileError("cuobjdump: no such file")

    monkeypatch.setattr(TritonModule, "register_usage", missing)
    default, variant = generate("", "grid i0/1; whole i1/16384; warps 8")
    assert prune_tilings(default, [variant], H100, threads=2) == [variant]
