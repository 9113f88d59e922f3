"""Which outputs of a kernel may share memory with an input."""

import pytest

from tests.support.kernels import kernel as parsed
from tofuse.backends.cpu.schedule.build_nest import build_nest
from tofuse.backends.cpu.schedule.choose_schedule import choose_schedule
from tofuse.backends.cuda.schedule.build_tiles import build_tiles
from tofuse.ir.parse_schedule import parse_schedule
from tofuse.ir.schedule import Target
from tofuse.ir.tile import GpuTarget
from tofuse.schedule.alias_legality import legal_aliases_by_name, legal_tile_aliases

SIGNATURE = "kernel k(x0: in f32, x1: in f32, y2: out f32) over"
ELEMENTWISE = (
    SIGNATURE
    + """ i0:5000 {
  v0 = load x0[i0] : f32
  v1 = load x1[INDEX] : f32
  v2 = add v0 v1 of f32 : f32
  store y2[i0] v2 : f32
}"""
)
ROWS = (
    SIGNATURE
    + """ i0:30 i1:40 {
  v0 = load x0[(40)*i0 + i1] : f32
  v1 = load x1[INDEX] : f32
  v2 = reduce amax<i1> v0 : f32
  v3 = sub v0 v2 of f32 : f32
  v4 = mul v3 v1 of f32 : f32
  store y2[(40)*i0 + i1] v4 : f32
}"""
)
SCALAR_UPDATE = """kernel k(x0: in f32, x1: in f32, y2: out f32, y3: out f32) over i0:50000 {
  v0 = load x0[0] : f32
  v1 = add v0 1.0 of f32 : f32
  v2 = load x1[i0] : f32
  v3 = mul v2 v1 of f32 : f32
  store y2[i0] v3 : f32
  store y3[0] v1 : f32
}"""


def aliases(text, schedule=None):
    kernel = parsed(text)
    chosen = parse_schedule(schedule) if schedule else choose_schedule(kernel, Target(16, 2))
    return legal_aliases_by_name(build_nest(kernel, chosen))


@pytest.mark.parametrize(
    ("text", "index", "legal"),
    [
        (ELEMENTWISE, "i0", {"x0", "x1"}),
        (ELEMENTWISE, "(-1)*i0 + 4999", {"x0"}),  # reversed
        (ELEMENTWISE, "0", {"x0"}),  # every iteration reads it
        (ELEMENTWISE, "(2)*i0", {"x0"}),
        (ROWS, "(40)*i0 + i1", {"x0", "x1"}),
        (ROWS, "i1", {"x0"}),
        (ROWS, "i0", {"x0"}),
    ],
)
def test_input_read_before_write_may_alias(text, index, legal):
    assert aliases(text.replace("INDEX", index)) == {("y2", x) for x in legal}


def test_row_reread_after_write_may_not_alias():
    text = """kernel k(x0: in f32, y1: out f32, y2: out f32) over i0:30 i1:40 {
  v0 = load x0[(40)*i0 + i1] : f32
  v1 = exp v0 of f32 : f32
  store y1[(40)*i0 + i1] v1 : f32
  v2 = reduce sum<i1> v1 : f32
  v3 = add v0 v2 of f32 : f32
  store y2[(40)*i0 + i1] v3 : f32
}"""
    assert aliases(text) == {("y2", "x0")}


GATHER = """kernel k(x0: in f32, x1: in i64, y2: out f32) over i0:30 i1:40 {
  v0 = load x1[i0] : i64
  v1 = gather x0[FIRST] by v0 * STEP below COUNT : f32
  v2 = load x0[(40)*i0 + i1] : f32
  v3 = sub v2 v1 of f32 : f32
  store y2[(40)*i0 + i1] v3 : f32
}"""


@pytest.mark.parametrize(
    ("first", "step", "count", "legal"),
    [
        ("(40)*i0", 1, 40, True),
        ("(40)*i0", 2, 20, True),
        ("(40)*i0", 1, 41, False),  # an element of the next row
        ("(40)*i0 + 1", 1, 39, False),
        ("(20)*i0", 1, 20, False),
        ("0", 40, 30, False),  # another row
    ],
)
def test_a_gather_in_its_own_row_is_read_before_the_row_is_written(first, step, count, legal):
    text = GATHER.replace("FIRST", first).replace("STEP", str(step)).replace("COUNT", str(count))
    assert (("y2", "x0") in aliases(text)) == legal


def test_scalar_read_by_all_threads_is_written_in_serial_phase():
    assert aliases(SCALAR_UPDATE) == {("y2", "x1"), ("y3", "x0"), ("y3", "x1")}
    nest = build_nest(parsed(SCALAR_UPDATE), choose_schedule(parsed(SCALAR_UPDATE), Target(16, 2)))
    assert [bool(p.band) for p in nest.phases] == [True, False]


COLUMNS = ROWS.replace("i0:30 ", "i0:30000 ").replace("amax<i1>", "amax<i0>")


@pytest.mark.parametrize(
    ("text", "index", "legal"),
    [
        (ELEMENTWISE, "i0", {"x0", "x1"}),
        (ELEMENTWISE, "(-1)*i0 + 4999", {"x0"}),
        (ELEMENTWISE, "0", {"x0"}),
        (ROWS, "(40)*i0 + i1", {"x0", "x1"}),
        (ROWS, "i1", {"x0"}),
        (ROWS, "i0", {"x0"}),
        (COLUMNS, "(40)*i0 + i1", {"x0", "x1"}),  # two launches: all instances have the sums
        (COLUMNS, "i1", {"x0"}),
    ],
)
def test_operands_that_launches_may_overwrite(text, index, legal):
    program = build_tiles(parsed(text.replace("INDEX", index)), GpuTarget())
    assert legal_tile_aliases(program) == tuple(sorted((int(x[1:]), 2) for x in legal))


GUARDED = (
    SIGNATURE
    + """ i0:5000 {
  v0 = load x0[i0] : f32
  v9 = in_range [i0] 1 4000 : b1
  v1 = load x1[i0] if v9 : f32
  v2 = add v0 v1 of f32 : f32
  store y2[i0] v2 : f32
}"""
)


def test_an_operand_that_is_read_under_a_guard_is_not_overwritten():
    assert legal_tile_aliases(build_tiles(parsed(GUARDED), GpuTarget())) == ((0, 2),)


CONSTANT = """kernel k(x0: in f32, y1: out bf16, y2: out f32) over i0:65536 {
  v0 = load x0[i0] : f32
  store y1[i0] v0 : bf16
  store y2[i0] 0.0 : f32
}"""


def test_a_value_that_does_not_depend_on_the_operand_may_be_stored_too_early():
    """Another warp may hold the elements that it is stored over."""
    assert legal_tile_aliases(build_tiles(parsed(CONSTANT), GpuTarget())) == ()
