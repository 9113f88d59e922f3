"""Tiles turned in registers: whole and partial ones, reads and writes, every type and width."""

import pytest
import torch

from tests.support.kernels import run_nest
from tofuse.backends.llvm.emit import emit
from tofuse.ir.kernel.parse import parse_kernel
from tofuse.ir.nest import Nest
from tofuse.ir.schedule import Target
from tofuse.schedule.build_nest import build_nest
from tofuse.schedule.choose_schedule import choose_schedule

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f64": torch.float64, "i64": torch.int64}


def nest(body: str, dtype: str, shape: tuple[int, int], lanes: int) -> Nest:
    rows, columns = shape
    buffers = f"x0: in {dtype}, x1: in {dtype}, y2: out {dtype}"
    kernel = parse_kernel(f"kernel k({buffers}) over i0:{rows} i1:{columns} {{\n{body}\n}}")
    return build_nest(kernel, choose_schedule(kernel, Target(lanes, 2)))


def summed(dtype: str, shape: tuple[int, int]) -> str:
    rows, columns = shape
    register = "f32" if dtype == "bf16" else dtype
    return f"""  v0 = load x0[i0 + ({rows})*i1] : {register}
  v1 = load x1[({columns})*i0 + i1] : {register}
  v2 = add v0 v1 of {register} : {register}
  store y2[({columns})*i0 + i1] v2 : {register}"""


@pytest.mark.parametrize("lanes", [4, 16])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(64, 64), (33, 70), (130, 64)])
def test_reads_across_the_vector(shape, dtype, lanes):
    x = (torch.randn(*reversed(shape)) * 9).to(TYPES[dtype])
    y = (torch.randn(*shape) * 9).to(TYPES[dtype])
    made = nest(summed(dtype, shape), dtype, shape, lanes)
    given = {"x0": x, "x1": y, "y2": torch.empty_like(y)}
    result = run_nest(made, given, {}, threads=2)["y2"]
    torch.testing.assert_close(result.view(shape), x.t() + y, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(64, 96), (33, 70)])
def test_writes_across_the_vector(shape):
    rows, columns = shape
    body = f"""  v0 = load x0[({columns})*i0 + i1] : f32
  v1 = load x1[({columns})*i0 + i1] : f32
  v2 = add v0 v1 of f32 : f32
  v3 = mul v2 v1 of f32 : f32
  store y2[i0 + ({rows})*i1] v3 : f32"""
    x, y = torch.randn(2, *shape)
    kernel = parse_kernel(
        f"kernel k(x0: in f32, x1: in f32, y2: out f32) over i0:{rows} i1:{columns} {{\n{body}\n}}"
    )
    schedule = choose_schedule(kernel, Target(16, 2))
    made = build_nest(kernel, schedule)
    result = run_nest(made, {"x0": x, "x1": y, "y2": torch.empty(columns, rows)}, {}, threads=2)
    torch.testing.assert_close(result["y2"].view(columns, rows), ((x + y) * y).t(), rtol=0, atol=0)


@pytest.mark.broad(3)
@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("colours", "points"), [(2, 128), (3, 77), (4, 64), (5, 16), (8, 200)])
def test_colours_of_pixels_are_parted_and_joined_in_registers(colours, points, dtype, lanes):
    register = "f32" if dtype == "bf16" else dtype
    buffers = ", ".join(
        [*(f"x{k}: in {dtype}" for k in "01"), *(f"y{k}: out {dtype}" for k in "23")]
    )
    kernel = parse_kernel(f"""kernel k({buffers}) over i0:3 i1:{points} i2:{colours} {{
  v0 = load x0[({colours * points})*i0 + ({colours})*i1 + i2] : {register}
  v1 = load x1[({colours * points})*i0 + i1 + ({points})*i2] : {register}
  v2 = add v0 v1 of {register} : {register}
  store y2[({colours * points})*i0 + i1 + ({points})*i2] v2 : {register}
  store y3[({colours * points})*i0 + ({colours})*i1 + i2] v2 : {register}
}}""")
    schedule = choose_schedule(kernel, Target(lanes, 2))
    assert schedule.loops[-2].axis == "i2" and schedule.loops[-1].axis == "i1"
    x = (torch.randn(3, points, colours) * 9).to(TYPES[dtype])
    y = (torch.randn(3, colours, points) * 9).to(TYPES[dtype])
    given = {"x0": x, "x1": y, "y2": torch.empty_like(y), "y3": torch.empty_like(x)}
    results = run_nest(build_nest(kernel, schedule), given, {}, threads=2)
    for name, expected in (("y2", x.transpose(1, 2) + y), ("y3", x + y.transpose(1, 2))):
        torch.testing.assert_close(results[name].view(expected.shape), expected, rtol=0, atol=0)


def test_whole_tiles_need_no_gathers():
    text = emit(nest(summed("f32", (128, 64)), "f32", (128, 64), 16))
    assert "shufflevector" in text and "masked.gather" not in text
    assert "masked.gather" in emit(nest(summed("f32", (128, 65)), "f32", (128, 65), 16))
