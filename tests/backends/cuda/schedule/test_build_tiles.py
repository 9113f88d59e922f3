"""Check the GPU launches of every case, or why there are none."""

from collections import Counter
from pathlib import Path

import pytest

from tests.support.cases import Case, accept, read_cases
from tests.support.kernels import kernel
from tofuse.backends.cuda.schedule.build_tiles import build_tiles
from tofuse.ir.kernel import Reduce
from tofuse.ir.tile import GpuTarget
from tofuse.schedule.schedule_legality import Unschedulable

UPDATES = {("t", "u")}
CASES = read_cases(Path(__file__).parent / "build_tiles.txt")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_text(case: Case, request: pytest.FixtureRequest):
    head, _, text = case.before.partition("\n")
    try:
        target = GpuTarget(int(head.split()[-1]))
        found = build_tiles(kernel(text), target, updates=UPDATES).loops_text
    except Unschedulable as e:
        found = f"unschedulable: {e}"
    if request.config.getoption("--accept"):
        accept(case, found)
    else:
        assert found == case.after


@pytest.mark.parametrize(
    "case", [c for c in CASES if not c.after.startswith("unschedulable")], ids=str
)
def test_every_reduction_is_computed_once(case: Case):
    """Results of partial sums are combined by reductions over other axes."""
    head, _, text = case.before.partition("\n")
    whole = kernel(text)
    program = build_tiles(whole, GpuTarget(int(head.split()[-1])), updates=UPDATES)
    computed = Counter(
        s.name
        for nest in program.nests
        for s in nest.kernel.body
        if isinstance(s, Reduce) and set(s.over) <= {a.name for a in whole.axes}
    )
    assert set(computed.values()) <= {1}, computed


def test_long_rows_of_which_there_are_none():
    text = """kernel k(x: in f32, y: out f32) over i0:0 i1:300000 {
      v0 = load x[(300000)*i0 + i1] : f32
      v1 = reduce sum<i1> v0 : f32
      store y[i0] v1 : f32
    }"""
    assert all(
        nest.instance_count({}) == 0 for nest in build_tiles(kernel(text), GpuTarget()).nests
    )
