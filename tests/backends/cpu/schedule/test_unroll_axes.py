"""Check the unrolled kernel of every case, and that its results are the same."""

from pathlib import Path

import pytest
import torch

from tests.backends.cpu.schedule.test_build_nest import buffer_lengths
from tests.support.cases import Case, accept, read_cases
from tests.support.kernels import kernel, random_buffers, run_interpreter, run_nest
from tofuse.backends.cpu.schedule.build_nest import build_nest
from tofuse.backends.cpu.schedule.choose_schedule import choose_schedule
from tofuse.backends.cpu.schedule.unroll_axes import unroll_axes
from tofuse.ir.schedule import Target
from tofuse.ops.check_kernel import check_kernel

CASES = read_cases(Path(__file__).parent / "unroll_axes.txt")
SIZES = {"s0": 37}
MIN_LANES = {  # unrolled only for vectors of at least this many lanes
    "rows of twelve with two reductions": 8,
    "rows of eighteen with two reductions": 16,
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
    buffers = random_buffers(k, buffer_lengths(k, sizes), torch.Generator().manual_seed(5))
    want = run_interpreter(k, buffers, sizes, precise=True)
    unrolled = unroll_axes(k, target)
    unchanged = lanes == 1 or case.after == repr(k) or lanes < MIN_LANES.get(case.name, 0)
    assert (unrolled is k) == unchanged
    nest = build_nest(unrolled, choose_schedule(unrolled, target))
    for name, t in run_nest(nest, buffers, sizes, 2).items():
        torch.testing.assert_close(t, want[name], rtol=1e-5, atol=1e-5)
