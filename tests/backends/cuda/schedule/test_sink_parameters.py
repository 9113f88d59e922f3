"""Which statements a loop over rows repeats, because registers cannot hold their values."""

import pytest

from tests.support.kernels import kernel
from tofuse.backends.cuda.schedule.sink_parameters import sink_parameters
from tofuse.ir.tile import Tile

NORM = """kernel k(x: in f32, w: in bf16, b: in f32, y: out f32, z: out f32) over i0:64 i1:{n} {{
  v0 = load w[i1] : f32
  v1 = add v0 1.0 of f32 : f32
  v2 = load b[i1] : f32
  v3 = load x[({n})*i0 + i1] : f32
  v4 = mul v3 v1 of f32 : f32
  v5 = reduce sum<i1> v4 : f32
  v6 = sub v4 v5 of f32 : f32
  v7 = reduce sum<i0> v6 : f32
  v8 = add v7 v2 of f32 : f32
  store y[({n})*i0 + i1] v6 : f32
  store z[i1] v8 : f32
}}"""


@pytest.mark.parametrize(("n", "expected"), [(8192, set()), (16384, {"v0", "v1"})])
def test_values_that_only_the_loop_reads_are_repeated(n: int, expected: set[str]):
    tiles = (Tile(("i0",), 1, "split"), Tile(("i1",), n, "whole"))
    found = sink_parameters(kernel(NORM.format(n=n)), ("i0",), tiles)
    assert {s.name for s in found} == expected


def test_nothing_is_repeated_by_a_loop_along_rows():
    tiles = (Tile(("i0",), 1, "grid"), Tile(("i1",), 8192, "loop"))
    assert not sink_parameters(kernel(NORM.format(n=65536)), ("i1",), tiles)
