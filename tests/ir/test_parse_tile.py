"""Tile programs print and parse; their text has all that is emitted."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from suites.gpu.capture import Example
from suites.gpu.lower import captured_kernels
from suites.gpu.programs import products, programs
from tests.backends.cuda.schedule.test_build_tiles import CASES, UPDATES
from tests.support.cases import Case
from tests.support.kernels import kernel
from tests.support.loops_text import assert_complete
from tests.support.tilings import parse_tiling_choice
from tofuse.backends.cuda.schedule.build_tiles import build_tiles
from tofuse.backends.cuda.triton.emit import emit
from tofuse.errors import ParseError
from tofuse.ir.parse_tile import parse_tile
from tofuse.ir.tile import GpuTarget, TileLoop

TILED = [c for c in CASES if not c.after.startswith("unschedulable")]
PRODUCTS = products()
PROGRAMS = programs() | PRODUCTS

KERNEL = """\
kernel k(x: in bf16, y: out bf16, z: out f32) over i0:s0 i1:203 sizes s0=300 {
  v0 = load x[(203)*i0 + i1] : f32
  v1 = reduce sum<i1> v0 : f32
  v2 = sub v0 v1 of f32 : f32
  v3 = reduce argmax<i0> v2 at [i0] : i64
  store y[(203)*i0 + i1] v2 : bf16
  v4 = convert v3 of i64 : f32
  store z[i1] v4 : f32
}
"""
LAUNCHES = """\
workspace w0: i64[406]
workspace w1: f32[406]
choice separate | loop i0/8; whole i1/256; warps 4
kernel k_part(x: in bf16, y: out bf16, w0: out i64, w1: out f32) over i0:s0 i1:203 sizes s0=300 {
  v0 = load x[(203)*i0 + i1] : f32
  v1 = reduce sum<i1> v0 : f32
  v2 = sub v0 v1 of f32 : f32
  v3 = reduce argmax<i0> v2 at [i0] : i64
  store y[(203)*i0 + i1] v2 : bf16
}
launch k_part: split i0/8; whole i1/256; warps 4; splits 2
  bounds s0=300
  rows of whole i1/256 from [(203)*i0] aligned to 8
  for split i0/8 reduces v3:
    v0 = load x[(203)*i0 + i1] : f32
    v1 = reduce sum<i1> v0 : f32
    v2 = sub v0 v1 of f32 : f32
    v3 = reduce argmax<i0> v2 at [i0] : i64
    store y[(203)*i0 + i1] v2 : bf16
  partial v3 in w0[i1] step 203 best w1
kernel k_combine(z: out f32, w0: in i64, w1: in f32) over i1:203 p0:2 sizes s0 {
  v3_w0 = load w1[i1 + (203)*p0] : f32
  v3_w0_at = reduce argmax<p0> v3_w0 at [p0] : i64
  v3 = gather w0[i1] by v3_w0_at * 203 below 2 : i64
  v4 = convert v3 of i64 : f32
  store z[i1] v4 : f32
}
launch k_combine: whole p0/2; grid i1/64; warps 4
  bounds s0=300
  v3_w0 = load w1[i1 + (203)*p0] : f32
  v3_w0_at = reduce argmax<p0> v3_w0 at [p0] : i64
  v3 = gather w0[i1] by v3_w0_at * 203 below 2 : i64
  v4 = convert v3 of i64 : f32
  store z[i1] v4 : f32"""


def test_example():
    program = parse_tile(KERNEL + LAUNCHES)
    assert repr(program) == KERNEL + LAUNCHES
    first, second = program.nests
    assert first.alignment is not None and first.alignment.tile is first.tiling.tiles[1]
    assert first.loops[0].reductions == (first.kernel.body[3],)
    assert first.loops[0].body[3] is first.kernel.body[3]
    assert first.partials["v3"].best == "w1" and second.partials == {}
    assert first.bounds == {"s0": 300} and program.choice.separate
    assert "def k1(z, w0, w1, s0, flag, number):" in emit(program)


def test_the_choice_is_that_of_the_launches_if_there_is_no_other():
    program = parse_tile(KERNEL + LAUNCHES.replace("choice separate | loop", "choice loop"))
    assert "choice" in repr(program)
    text = KERNEL + LAUNCHES.replace("choice separate | loop i0/8; whole i1/256; warps 4\n", "")
    program = parse_tile(text)
    assert program.choice.tilings == tuple(n.tiling for n in program.nests)
    assert repr(program) == text


@pytest.mark.parametrize("case", TILED, ids=str)
def test_programs_of_text_fixtures(case: Case):
    head, _, text = case.before.partition("\n")
    k, target = kernel(text), GpuTarget(int(head.split()[-1]))
    assert_complete(build_tiles(k, target, updates=UPDATES))
    bounds = dict.fromkeys(k.symbols, 40)
    assert_complete(build_tiles(k, target, updates=UPDATES, bounds=bounds))


def test_a_given_choice():
    text = KERNEL.replace("s0", "64").replace(" sizes 64=300", "")
    choice = parse_tiling_choice("split i0/4; whole i1/256; warps 2; splits 4")
    program = build_tiles(kernel(text), GpuTarget(), choice=choice)
    assert len(program.nests) > 1
    assert_complete(program)


def test_programs_of_the_corpus(fresh_dynamo: None, some: Callable[..., list[str]]):
    for name in some(sorted(PROGRAMS), 4):

        def make(name: str = name) -> Example:
            return PROGRAMS[name](torch.bfloat16)

        for captured in captured_kernels(make, contract=name in PRODUCTS):
            assert_complete(build_tiles(captured.kernel, GpuTarget(), bounds=captured.bounds))


def test_a_kernel_without_statements():
    program = build_tiles(kernel("kernel k() over 1 {\n}"), GpuTarget())
    assert repr(program) == "kernel k() over 1 {\n}\nlaunch k: warps 1"
    assert_complete(program)


def test_loops_without_a_body():
    program = parse_tile(KERNEL + LAUNCHES)
    first, second = program.nests
    (loop,) = first.loops
    for loops in ((TileLoop(()), loop), (loop, TileLoop(())), (loop, TileLoop(()), loop)):
        changed_program = replace(program, nests=(replace(first, loops=loops), second))
        again = parse_tile(repr(changed_program))
        assert repr(again) == repr(changed_program)
        assert len(again.nests[0].loops) == len(loops)


def changed(old: str, new: str) -> str:
    assert old in LAUNCHES
    return KERNEL + LAUNCHES.replace(old, new, 1)


NOT_PARSED = (
    (KERNEL, "a tile program is a kernel, then lines 'launch k: grid"),
    (changed("workspace w0: i64[406]", "workspace w0: i64[s1]"), "s1 is neither defined nor a"),
    (changed("launch k_part", "launch k_pa"), "line 20, column 8: 'k_part' expected"),
    (changed("split i0/8; whole", "part i0/8; whole"), "line 20, column 16: a tile or a number"),
    (changed("warps 4; splits 2", "splits 2"), "a tiling without warps at the end of the line"),
    (changed("whole i1/256; warps 4; s", "whole i1; warps 4; s"), "axes and a block such as i0"),
    (changed("bounds s0=", "bounds s1="), "line 21, column 10: s1 is not a size of the kernel"),
    (
        changed("rows of whole i1/256", "rows of whole i1/8"),
        "line 22, column 11: this is no tile",
    ),
    (changed("for split i0/8", "for whole i1/256"), "a tile with the role loop or split expected"),
    (changed("reduces v3", "reduces v2"), "v2 is not a reduction of the kernel"),
    (changed("    v2 = sub v0 v1", "    v2 = sub v1 v0"), "line 26, column 5: the kernel has no"),
    (changed("    v2 = sub v0 v1", "      v2 = sub v0 v1"), "unexpected line or indentation"),
    (changed("in w0[i1] step", "in w7[i1] step"), "w7 is not a buffer of the kernel"),
    (KERNEL + LAUNCHES[: LAUNCHES.index("launch k_combine")], "the launch of this kernel"),
)


@pytest.mark.parametrize(("text", "message"), NOT_PARSED)
def test_parse_errors_name_the_line(text: str, message: str):
    with pytest.raises(ParseError) as caught:
        parse_tile(text)
    assert message in str(caught.value)
