"""Stores past the caches: whole vectors only, wherever rows begin."""

import pytest
import torch

from tests.support.kernels import filled, judge, kernel, plain, run_llvm
from tofuse.backends.llvm.emit import emit
from tofuse.ir.schedule import Loop, Schedule, Target
from tofuse.schedule.build_nest import build_nest
from tofuse.schedule.choose_schedule import choose_schedule

GENERATOR = torch.Generator().manual_seed(12)


def test_streams_start_at_whole_vectors():
    """A streamed store traps where it is not aligned, as in tiles of odd length."""
    k = kernel(
        """kernel k(x: in f32, y: nontemporal f32) over i0:200 {
          v0 = load x[i0] : f32
          store y[i0] v0 : f32
        }"""
    )
    x = plain(200, torch.float32, GENERATOR)
    for strip in (24, 32, 200):
        nest = build_nest(k, Schedule((Loop("i0", strip), Loop("i0")), 1, 16, 1))
        assert "nontemporal" in emit(nest)
        assert torch.equal(run_llvm(k, nest.schedule, {"x": x, "y": x.clone()}, {}, 2)["y"], x)


ROWS_OF_ANY_LENGTH = """kernel k(x: in {t}, y: nontemporal {t}, z: nontemporal f32, u: nontemporal f32)
  over i0:7 i1:{n} {{
  v0 = load x[({n})*i0 + i1] : f32
  v1 = reduce sum<i1> v0 : f32
  v2 = sub v0 v1 of f32 : f32
  store y[({n})*i0 + i1] v2 : {t}
  store z[({n})*i0 + i1 + 3] v0 : f32
  store u[({m})*i0 + i1 + 16] v0 : f32
}}"""


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("n", [64, 257, 259, 1000, "s0"])
def test_streams_of_rows_that_begin_anywhere(n, dtype):
    """Whole vectors past the caches in each row, whatever its length and where it begins."""
    length, sizes = (301, {"s0": 301}) if n == "s0" else (n, {})
    text = ROWS_OF_ANY_LENGTH.replace("\n  over", " over").format(
        t=dtype, n=n, m="s0+16" if sizes else n + 16
    )
    k = kernel(text.replace(" {\n", " sizes s0 {\n", 1) if sizes else text)
    total = 7 * (length + 16) + 16
    buffers = filled(k, dict.fromkeys("xyzu", total), GENERATOR)
    want = judge(k, buffers, sizes)
    schedule = choose_schedule(k, Target(16, 2))
    assert "nontemporal" in emit(build_nest(k, schedule))
    for threads in (1, 3):
        got = run_llvm(k, schedule, buffers, sizes, threads)
        for name, t in want.items():
            torch.testing.assert_close(got[name], t, rtol=1e-5, atol=1e-4)
