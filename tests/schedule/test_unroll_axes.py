"""Every case of writing out: the kernel after it, which computes what the one before it does."""

from pathlib import Path

import pytest
import torch

from tests.schedule.test_build_nest import lengths
from tests.support.cases import Case, accept, read_cases
from tests.support.kernels import filled, judge, kernel, run_nest
from tofuse.ir.schedule import Target
from tofuse.ops.check_kernel import check_kernel
from tofuse.schedule.build_nest import build_nest
from tofuse.schedule.choose_schedule import choose_schedule
from tofuse.schedule.unroll_axes import unroll_axes

CASES = read_cases(Path(__file__).parent / "unroll_axes.txt")
SIZES = {"s0": 37}
LONG_ROWS = {  # written out by vectors of so many lanes
    "rows of twelve that are reduced twice": 8,
    "rows of eighteen that are reduced twice": 16,
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_text(case: Case, request: pytest.FixtureRequest):
    before = kernel(case.before)
    after = unroll_axes(before, Target(16, 2))
    check_kernel(after)
    if request.config.getoption("--accept"):
        accept(case, repr(after))
    else:
        assert repr(after) == case.after


@pytest.mark.parametrize("lanes", [1, 4, 8, 16])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_machine_code(case: Case, lanes: int):
    k, target = kernel(case.before), Target(lanes, 2)
    sizes = {s: SIZES[s] for s in k.symbols}
    buffers = filled(k, lengths(k, sizes), torch.Generator().manual_seed(5))
    want = judge(k, buffers, sizes, precise=True)
    written = unroll_axes(k, target)
    stays = lanes == 1 or case.after == repr(k) or lanes < LONG_ROWS.get(case.name, 0)
    assert (written is k) == stays
    nest = build_nest(written, choose_schedule(written, target))
    for name, t in run_nest(nest, buffers, sizes, 2).items():
        torch.testing.assert_close(t, want[name], rtol=1e-5, atol=1e-5)
