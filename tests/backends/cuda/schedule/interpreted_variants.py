"""Every variant of kernels in Triton's interpreter; see test_tiling_variants.py."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from tests.backends.cuda.triton.interpreted import sizes_and_buffers
from tests.support.cases import Case, read_cases
from tests.support.kernels import kernel, run_interpreter
from tests.support.tile_runner import run_tiles
from tests.support.tilings import parse_tiling_choice
from tofuse.backends.cuda.schedule.build_tiles import build_tiles
from tofuse.backends.cuda.schedule.tiling_variants import tiling_variants
from tofuse.ir.kernel import Kernel
from tofuse.ir.tile import GpuTarget, TileProgram
from tofuse.schedule.schedule_legality import Unschedulable

KERNELS = read_cases(Path(__file__).with_name("tiling_variants.txt"))
LAUNCHES = read_cases(Path(__file__).with_name("build_tiles.txt"))


def check_variants(k: Kernel, target: GpuTarget, limit: int) -> int:
    """Compare the results of every variant with the interpreter; return how many there are."""
    program = build_tiles(k, target)
    variants = tiling_variants(program, target, limit=limit)
    check_results(k, [program, *variants])
    return len(variants)


def check_results(k: Kernel, programs: Sequence[TileProgram]) -> None:
    sizes, buffers = sizes_and_buffers(k)
    want = run_interpreter(k, buffers, sizes, precise=True)
    for variant in programs:
        got = run_tiles(variant, buffers, sizes)
        expected = {name: want[name] for name in got}
        torch.testing.assert_close(got, expected, rtol=2e-4, atol=2e-3)


@pytest.mark.parametrize("case", KERNELS, ids=str)
def test_every_variant_has_right_results(case: Case):
    head, _, text = case.before.partition("\n")
    assert check_variants(kernel(text), GpuTarget(int(head.split()[-1])), limit=1000) >= 4


@pytest.mark.parametrize("case", LAUNCHES, ids=str)
def test_variants_of_launches(case: Case):
    head, _, text = case.before.partition("\n")
    try:
        check_variants(kernel(text), GpuTarget(int(head.split()[-1])), limit=2)
    except Unschedulable:
        assert case.after.startswith("unschedulable")


SOFTMAX = """kernel k(x: in f32, y: out f32) over i0:3 i1:301 {
  v0 = load x[(301)*i0 + i1] : f32
  v1 = reduce amax<i1> v0 : f32
  v2 = sub v0 v1 of f32 : f32
  v3 = exp v2 of f32 : f32
  v4 = reduce sum<i1> v3 : f32
  v5 = div v3 v4 of f32 : f32
  store y[(301)*i0 + i1] v5 : f32
}"""
ARGMIN = """kernel k(x: in f32, y: out i64) over i0:301 {
  v0 = load x[i0] : f32
  v1 = reduce argmin<i0> v0 at [i0] : i64
  store y[0] v1 : i64
}"""


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        (SOFTMAX, "grid i0/1; split i1/16; warps 1; splits 5"),
        (SOFTMAX, "grid i0/2; split i1/16; warps 2; splits 64; stages 2"),
        (SOFTMAX, "grid i0/2; loop i1/512; warps 1"),
        (SOFTMAX, "grid i0/1; whole i1/1024; warps 32"),
        (ARGMIN, "split i0/16; warps 1; splits 5"),
        (ARGMIN, "split i0/64; warps 1; splits 40 | loop p0/8; warps 1"),
        (ARGMIN, "loop i0/64; warps 2; stages 3"),
    ],
)
def test_any_legal_tiling_has_right_results(text: str, choice: str):
    program = build_tiles(kernel(text), GpuTarget(4), choice=parse_tiling_choice(choice))
    assert repr(program.choice).startswith(choice)
    check_results(kernel(text), [program])
