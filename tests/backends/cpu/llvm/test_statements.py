"""The masked group at the end of a row writes nothing outside its elements."""

import pytest
import torch

from tests.support.kernels import kernel, random_buffers, run_interpreter, run_llvm
from tofuse.ir.parse_schedule import parse_schedule

NARROWING = [("i64", "i32"), ("i64", "i8"), ("i32", "i16"), ("i32", "u8"), ("i64", "b1")]


@pytest.mark.parametrize(("source", "result"), NARROWING)
@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_tail_of_one_narrowed_element(source, result, lanes):
    """A store of a single active lane must not be as wide as the lane was before the conversion."""
    for length in (lanes - 1, lanes + 1, 2 * lanes + 1, 2 * lanes + 2, 4 * lanes + 1):
        value = "lt v0 0 of" if result == "b1" else "convert v0 of"
        k = kernel(
            f"kernel k(x0: in {source}, y1: out {result}) over i0:3 i1:{length} {{\n"
            f"  v0 = load x0[({length})*i0 + i1] : {source}\n"
            f"  v1 = {value} {source} : {result}\n"
            f"  store y1[({length})*i0 + i1] v1 : {result}\n"
            "}"
        )
        schedule = parse_schedule(f"order i0 i1; parallel 1; vector {lanes}; unroll 4")
        buffers = random_buffers(
            k, {"x0": 3 * length, "y1": 3 * length}, torch.Generator().manual_seed(0)
        )
        got, want = run_llvm(k, schedule, buffers, {}), run_interpreter(k, buffers, {})
        assert torch.equal(got["y1"], want["y1"]), length
