"""Rows that begin at unaligned addresses: numbers in another process, and widths of accesses."""

import re
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import pytest

from tests.backends.cuda.triton.test_load import compile_binaries, global_accesses
from tests.support.interpreted import needs_triton, run_interpreted

pytestmark = needs_triton


def test_triton_interpreter(request: pytest.FixtureRequest):
    full = ["--full"] if request.config.getoption("--full") else []
    run_interpreted(Path(__file__).with_name("interpreted_rows.py"), *full)


SOFTMAX = """kernel k(x: in {0}, y: out {0}) over i0:4096 i1:{1} {{
  v0 = load x[({1})*i0 + i1] : f32
  v1 = reduce amax<i1> v0 : f32
  v2 = sub v0 v1 of f32 : f32
  v3 = exp v2 of f32 : f32
  v4 = reduce sum<i1> v3 : f32
  v5 = div v3 v4 of f32 : f32
  store y[({1})*i0 + i1] v5 : {0}
}}"""
WIDENED = """kernel k(x: in bf16, w: in f32, y: out f32) over i0:4096 i1:4099 {
  v0 = load x[(4099)*i0 + i1] : f32
  v1 = load w[i1] : f32
  v2 = reduce sum<i1> v0 : f32
  v3 = mul v1 v2 of f32 : f32
  v4 = add v0 v3 of f32 : f32
  store y[(4099)*i0 + i1] v4 : f32
}"""


def widths(text: str, unaligned: Collection[str] = ()) -> Counter[int]:
    """Return how many accesses have how many bytes, in the first launch."""
    binary = compile_binaries(text, unaligned=unaligned)[0]
    return Counter(_bytes(a) for a in global_accesses(binary))


def _bytes(access: str) -> int:
    count = re.search(r"\.v(\d)", access)
    bits = re.search(r"\.[bsuf](\d+)", access)
    assert bits is not None
    return int(bits[1]) // 8 * (int(count[1]) if count else 1)


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("columns", [4097, 8191, 50257])
def test_blocks_of_odd_rows_have_16_bytes(dtype: str, columns: int):
    """The edge of a row is read once, or once in each pass, and written once."""
    found = widths(SOFTMAX.format(dtype, columns))
    passes = 3 if columns == 50257 else 1
    narrow = 2 if dtype == "bf16" else 4
    assert found.keys() == {16, narrow}
    assert 2 <= found[narrow] <= passes + 1


def test_rows_of_different_types_share_an_edge():
    """Rows of floats begin at multiples of 16 bytes wherever those of bfloat16 do."""
    found = widths(WIDENED)
    row = 8192 // 256  # elements of the block that each thread holds
    assert found[16] == row // 8 + row // 4
    assert found[4] == row + 2  # the parameters, their edge, and that of the result


def test_addresses_that_are_not_aligned_have_narrow_accesses():
    unaligned = widths(SOFTMAX.format("bf16", 4097), {"x"})
    assert unaligned[16] == widths(SOFTMAX.format("bf16", 4097))[16] // 2
