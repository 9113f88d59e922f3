"""Which tilings of a launch are legal, given a legal one."""

import pytest

from tests.support.kernels import kernel
from tests.support.tilings import parse_tiling_choice
from tofuse.backends.cuda.schedule.build_tiles import build_tiles
from tofuse.ir.tile import GpuTarget
from tofuse.schedule.schedule_legality import Unschedulable

SUMS = """kernel k(x: in f32, y: out f32) over i0:13 i1:203 {
  v0 = load x[(203)*i0 + i1] : f32
  v1 = reduce sum<i1> v0 : f32
  store y[i0] v1 : f32
}"""
BOTH = """kernel k(x: in f32, y: out f32, z: out f32) over i0:256 i1:64 {
  v0 = load x[(64)*i0 + i1] : f32
  v1 = reduce sum<i1> v0 : f32
  v2 = reduce sum<i0> v0 : f32
  store y[i0] v1 : f32
  store z[i1] v2 : f32
}"""
PRODUCT = """kernel k(a: in f32, b: in f32, y: out f32) over i0:64 i1:64 i2:64 {
  v0 = load a[(64)*i0 + i2] : f32
  v1 = load b[(64)*i2 + i1] : f32
  v2 = mul v0 v1 of f32 : f32
  v3 = reduce sum<i2> v2 : f32
  store y[(64)*i0 + i1] v3 : f32
}"""
DYNAMIC = SUMS.replace("i1:203 {", "i1:s0 sizes s0 {").replace("203", "s0")


def built(text: str, choice: str) -> str:
    program = build_tiles(kernel(text), GpuTarget(4), choice=parse_tiling_choice(choice))
    return repr(program.choice).split(" | ")[0]


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        (SUMS, "grid i0/1; whole i1/256; warps 1"),
        (SUMS, "grid i0/4; loop i1/8; warps 32; stages 3"),
        (SUMS, "grid i0/4; split i1/8; warps 1; splits 5"),
        (DYNAMIC, "grid i0/1; loop i1/64; warps 2"),
        (BOTH, "loop i0/4; whole i1/64; warps 2"),
        (PRODUCT, "grid i0/64; grid i1/16; loop i2/32; warps 4; swizzle 4"),
    ],
)
def test_legal_tilings_are_taken(text: str, choice: str):
    assert built(text, choice) == choice


@pytest.mark.parametrize(
    ("text", "choice", "reason"),
    [
        (SUMS, "whole i1/256; grid i0/1; warps 1", "axes"),
        (SUMS, "grid i0/1; warps 1", "axes"),
        (SUMS, "grid i0/1; whole i1/128; warps 1", "block"),
        (SUMS, "grid i0/3; whole i1/256; warps 1", "block"),
        (SUMS, "grid i0/1; grid i1/256; warps 1", "cannot be grid"),
        (SUMS, "whole i0/16; whole i1/256; warps 1", "cannot be whole"),
        (SUMS, "grid i0/8192; whole i1/256; warps 1", "elements"),
        (SUMS, "grid i0/1; whole i1/256; warps 3", "warps"),
        (SUMS, "grid i0/1; whole i1/256; warps 64", "warps"),
        (SUMS, "grid i0/1; whole i1/256; warps 1; stages 0", "zero"),
        (SUMS, "grid i0/1; loop i1/64; warps 1; splits 2", "splits"),
        (SUMS, "grid i0/1; loop i1/64; warps 1; swizzle 8", "swizzled"),
        (SUMS, "separate", "same axes"),
        (DYNAMIC, "grid i0/1; whole i1/4096; warps 2", "block"),
        (BOTH, "whole i0/256; loop i1/8; warps 2", "cannot be loop"),
        (PRODUCT, "grid i0/64; grid i1/8; loop i2/32; warps 4; swizzle 8", "product"),
        (PRODUCT, "grid i0/64; grid i1/64; whole i2/64; warps 4; swizzle 8", "cannot be whole"),
    ],
)
def test_other_tilings_are_refused(text: str, choice: str, reason: str):
    with pytest.raises(Unschedulable, match=reason):
        built(text, choice)


def test_later_launches_are_tiled_by_the_heuristics():
    choice = parse_tiling_choice("separate")
    program = build_tiles(kernel(BOTH), GpuTarget(4), choice=choice)
    assert len(program.nests) == len(program.choice.tilings) >= 2 and program.choice.separate
