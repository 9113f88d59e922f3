"""Nests print and parse; their text has all that is emitted. `tests/test_golden.py` has more."""

import pytest

from tests.backends.cpu.schedule.test_build_nest import CASES, build_case_nest
from tests.support.cases import Case
from tests.support.loops_text import assert_complete
from tofuse.backends.cpu.llvm.emit import emit
from tofuse.backends.cpu.schedule.build_nest import build_nest
from tofuse.backends.cpu.schedule.choose_schedule import choose_schedule
from tofuse.backends.cpu.schedule.prefetch import prefetch
from tofuse.errors import ParseError
from tofuse.ir.nest import For
from tofuse.ir.parse_kernel import parse_kernel
from tofuse.ir.parse_nest import parse_nest
from tofuse.ir.parse_schedule import parse_schedule
from tofuse.ir.schedule import Target

SCHEDULED = [c for c in CASES if not c.after.startswith("unschedulable")]

KERNEL = """\
kernel k(x: in f32, s: in i64, y: out f32, z: out f32) over i0:s0 i1:64 sizes s0=4000 {
  v0 = load x[(64)*i0 + i1] : f32
  v1 = uniform s[i0][i1] of 64 stream 3 : f32
  v2 = add v0 v1 of f32 : f32
  v3 = reduce sum<i1> v2 : f32
  v4 = sub v2 v3 of f32 : f32
  v5 = reduce sum<i0> v4 : f32
  store y[(64)*i0 + i1] v4 : f32
  store z[i1] v5 : f32
}
"""
LOOPS = """\
nest k: order i0 i1; parallel 1; vector 16; unroll 4; workspace 4096
  scratch v2.keep: f32[64] at 0 index [i1] spills v2
  scratch s.keys: i32[32] at 256 index [0] keys s
  scratch v5.keep: f32[64] at 384 index [i1]
  scratch v5.0.keep: f32[64] at 704 index [i1]
  scratch v5.1.keep: f32[64] at 1024 index [i1]
  phase:
    begin v5 in v5.keep stages v5.0.keep,v5.1.keep
    parallel i0:
      begin v3
      for i1 prefetch v0[(64)*i0 + i1 + 64]:
        v0 = load x[(64)*i0 + i1] : f32
        v1 = uniform s[i0][i1] of 64 stream 3 : f32
        v2 = add v0 v1 of f32 : f32
        v3 = reduce sum<i1> v2 : f32
      end v3
      for i1:
        v2 = reload v2.keep
        v4 = sub v2 v3 of f32 : f32
        v5 = reduce sum<i0> v4 : f32
        store y[(64)*i0 + i1] v4 : f32
    combine v5
  phase:
    serial:
      for i1:
        v5 = reload v5.keep
        store z[i1] v5 : f32"""


def test_example():
    nest = parse_nest(KERNEL + LOOPS)
    assert repr(nest) == KERNEL + LOOPS
    assert nest.kernel.symbols[0] == "s0" and "sizes s0=4000 {" in repr(nest.kernel)
    (partial,), loop = nest.phases[0].partials, nest.phases[0].body[0]
    assert isinstance(loop, For) and loop.prefetch[0].dtype.value == "f32"
    assert nest.spills["v2"].elements == 64 and len(partial.stages) == 2
    assert loop.reductions[0].reduce is nest.kernel.body[3]
    assert "@llvm.prefetch" in emit(nest) and "@k.combine0" in emit(nest)


@pytest.mark.parametrize("case", SCHEDULED, ids=str)
def test_nests_of_text_fixtures(case: Case):
    nest = build_case_nest(case)
    assert_complete(nest)
    assert_complete(prefetch(nest))


TRANSPOSED = """\
kernel k(x: in f32, w: in f32, y: out f32) over i0:s0 i1:s0 sizes s0=9000 {
  v0 = load x[i0 + (s0)*i1] : f32
  v1 = load w[(s0)*i0 + i1] : f32
  v2 = add v0 v1 of f32 : f32
  store y[(s0)*i0 + i1] v2 : f32
}"""


REPEATED = """\
kernel k(x: in f32, y: out f32) over i0:64 i1:2000 i2:500 {
  v0 = load x[(1000000)*i0 + (500)*i1 + i2] : f32
  v1 = reduce argmax<i1> v0 at [i1] : i64
  v2 = convert v1 of i64 : f32
  v3 = add v0 v2 of f32 : f32
  v4 = reduce sum<i0,i1,i2> v3 : f32
  v5 = add v2 v4 of f32 : f32
  store y[(1000000)*i0 + (500)*i1 + i2] v5 : f32
}"""


def test_size_hints_that_the_emitter_asks_for():
    """The next rows of a transposed matrix are prefetched if the matrix is large."""
    for size, prefetches in ((9000, True), (90, False)):
        kernel = parse_kernel(TRANSPOSED.replace("9000", str(size)))
        nest = build_nest(kernel, choose_schedule(kernel, Target(16, 2)))
        assert ("@llvm.prefetch" in emit(nest)) == prefetches
        assert_complete(nest)


def test_a_repeated_reduction_has_arrays_of_other_names_in_each_place():
    kernel = parse_kernel(REPEATED)
    nest = build_nest(kernel, parse_schedule("order i0 i1 i2; parallel 1; vector 8; unroll 1"))
    assert "begin v1 in v1.keep best v1.best.keep2" in repr(nest)
    assert_complete(nest)


def changed(old: str, new: str) -> str:
    assert old in LOOPS
    return KERNEL + LOOPS.replace(old, new, 1)


NOT_PARSED = (
    (KERNEL, "a nest is a kernel, then a line 'nest k: order i0"),
    (changed("nest k", "nest j"), "line 11, column 6: 'k' expected at 'j: order"),
    (changed("i0 i1;", "i0 i1/x;"), "line 11, column 18: a loop such as i0 or i0/64 expected"),
    (changed("; workspace 4096", ""), "';' expected at the end of the line"),
    (changed("4096", "s1"), "s1 is neither defined nor a size of the kernel"),
    (changed("f32[64] at 0", "q8[64] at 0"), "line 12, column 20: q8 is not an element type"),
    (changed("spills v2", "spills v9"), "line 12, column 51: v9 is not defined"),
    (changed("keys s", "keys t"), "t is not a buffer"),
    (changed("in v5.keep", "in v6.keep"), "v6.keep is not a scratch array"),
    (changed("begin v3", "begin v4"), "v4 is not a reduction of the kernel"),
    (changed("parallel i0:", "parallel i7:"), "i7 is not a loop of the schedule"),
    (
        changed("    parallel i0:", "    always:"),
        "column 5: 'parallel' and loops, or 'serial' expected",
    ),
    (changed("prefetch v0", "prefetch v1"), "v1 is not a load of the kernel"),
    (changed("v2 = add v0", "v2 = sub v0"), "line 24, column 9: the kernel has no such statement"),
    (changed("        v2 = add", "          v2 = add"), "line 24, column 11: 'end v3' expected"),
    (changed("      end v3\n", ""), "line 26, column 7: 'end v3' expected at 'for i1:'"),
    (changed("    combine v5\n", ""), "line 32, column 3: 'combine v5' expected"),
    (changed("      for i1:\n", ""), "line 27, column 9: 'combine v5' expected"),
    (
        f"{KERNEL}{LOOPS}\n          v0",
        "line 38, column 11: unexpected line or",
    ),
    (changed("reload v2.keep", "reload v1.keep"), "v1.keep is not a scratch array"),
)


@pytest.mark.parametrize(("text", "message"), NOT_PARSED)
def test_parse_errors_name_the_line(text: str, message: str):
    with pytest.raises(ParseError) as caught:
        parse_nest(text)
    assert message in str(caught.value)
