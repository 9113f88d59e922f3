"""Unroll and jam: any number of iterations of two nested loops, with values kept in scratch."""

import pytest
import torch

from tests.support.kernels import kernel, run_llvm
from tofuse.backends.cpu.schedule.build_nest import build_nest
from tofuse.ir.parse_schedule import parse_schedule

TEXT = """
kernel k(w: in f32, x: in f32, s: in f32, y: out f32) over m:{m} n:{n} k:{k} {{
  v0 = load w[({k})*n + k] : f32
  v1 = load s[n] : f32
  v2 = mul v0 v1 of f32 : f32
  v3 = load x[({k})*m + k] : f32
  v4 = mul v3 v2 of f32 : f32
  v5 = reduce sum<k> v4 : f32
  v6 = add v5 v1 of f32 : f32
  store y[({n})*m + n] v6 : f32
}}
"""


@pytest.mark.parametrize("order", ["n m", "n/8 n m", "m n"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 3), (5, 8), (7, 9), (8, 17), (9, 16)])
def test_counts(rows, columns, order):
    for jams in ((1, 4), (3, 2), (8, 1)):
        for depth in (5, 33):
            loops = " ".join(
                f"{axis} jam {jam}" if "/" not in axis and jam > 1 else axis
                for axis in order.split()
                for jam in [jams["mn".index(axis[0])]]
            )
            k = kernel(TEXT.format(m=rows, n=columns, k=depth))
            schedule = parse_schedule(f"order {loops} k; parallel 1; vector 16; unroll 1")
            w, x = torch.randn(columns, depth), torch.randn(rows, depth)
            s = torch.randn(columns)
            buffers = {"w": w, "x": x, "s": s, "y": torch.empty(rows, columns)}
            found = run_llvm(k, schedule, buffers, {}, threads=2)["y"].view(rows, columns)
            torch.testing.assert_close(found, x @ (w * s[:, None]).T + s, rtol=1e-5, atol=1e-4)


def test_values_in_scratch_arrays():
    """What is computed for each row is kept for all columns: several rows are reloaded at once."""
    k = kernel(
        """kernel k(w: in f32, x: in f32, y: out f32) over m:5 n:64 k:40 {
          v0 = load w[(40)*n + k] : f32
          v1 = load x[(40)*m + k] : f32
          v2 = exp v1 of f32 : f32
          v3 = mul v2 v0 of f32 : f32
          v4 = reduce sum<k> v3 : f32
          store y[(64)*m + n] v4 : f32
        }"""
    )
    schedule = parse_schedule("order n/16 n jam 3 m jam 2 k; parallel 1; vector 16; unroll 1")
    buffers = {"w": torch.randn(64, 40), "x": torch.randn(5, 40), "y": torch.empty(5, 64)}
    assert build_nest(k, schedule).spills.keys() == {"v2"}
    expected = buffers["x"].exp() @ buffers["w"].T
    torch.testing.assert_close(run_llvm(k, schedule, buffers, {})["y"].view(5, 64), expected)
