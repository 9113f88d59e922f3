"""Masked loads and stores: what they write, and where they may read."""

import re

import pytest
import torch

from tests.support.kernels import kernel, random_buffers, run_interpreter, run_llvm
from tofuse.backends.cpu.llvm.emit import emit
from tofuse.backends.cpu.schedule.build_nest import build_nest
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


@pytest.mark.parametrize("axis", ["i0", "i1"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dtype", ["f32", "u8", "bf16"])
def test_a_load_behind_a_guard_starts_inside_its_buffer(axis: str, stride: int, dtype: str):
    """Also if no lane passes the guard: a masked load of an unmapped page takes microseconds."""
    row, register = 40 * stride, "f32" if dtype == "bf16" else dtype
    first, offset = {"i0": (27, -3 * row), "i1": (0, 0)}[axis]
    k = kernel(
        f"kernel k(x0: in {dtype}, y1: out {dtype}) over i0:6 i1:40 sizes first {{\n"
        f"  v0 = in_range [{axis} + first] 30 34 : b1\n"
        f"  v1 = load x0[({row})*i0 + ({stride})*i1 + {offset}] if v0 : {register}\n"
        f"  store y1[(40)*i0 + i1] v1 : {dtype}\n"
        "}"
    )
    buffers = random_buffers(k, {"x0": 6 * row, "y1": 240}, torch.Generator().manual_seed(0))
    want = run_interpreter(k, buffers, {"first": first})["y1"]
    for lanes in (1, 8, 16):
        schedule = parse_schedule(f"order i0 i1; parallel 1; vector {lanes}; unroll 2")
        got = run_llvm(k, schedule, buffers, {"first": first})
        assert torch.equal(got["y1"], want), lanes
        for function in emit(build_nest(k, schedule)).split("define "):
            defined = dict(re.findall(r"(%\w+) = (.*)", function))
            for address in re.findall(r"@llvm\.masked\.load\S+\(ptr align \d+ (%\w+)", function):
                at = defined[address].split()[-1]
                while defined[at].startswith("add i64"):  # a later vector
                    at = defined[at].split()[2].rstrip(",")
                assert defined[at].startswith("select i1"), function
