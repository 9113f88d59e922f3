"""Register transposes: full and partial tiles, loads and stores, every dtype and width."""

import pytest
import torch

from tests.support.kernels import run_nest
from tofuse.backends.cpu.llvm.emit import emit
from tofuse.backends.cpu.schedule.build_nest import build_nest
from tofuse.backends.cpu.schedule.choose_schedule import choose_schedule
from tofuse.ir.nest import Nest
from tofuse.ir.parse_kernel import parse_kernel
from tofuse.ir.schedule import Target

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f64": torch.float64, "i64": torch.int64}


def nest(body: str, dtype: str, shape: tuple[int, int], lanes: int) -> Nest:
    rows, columns = shape
    buffers = f"x0: in {dtype}, x1: in {dtype}, y2: out {dtype}"
    kernel = parse_kernel(f"kernel k({buffers}) over i0:{rows} i1:{columns} {{\n{body}\n}}")
    return build_nest(kernel, choose_schedule(kernel, Target(lanes, 2)))


def sum_with_transpose(dtype: str, shape: tuple[int, int]) -> str:
    rows, columns = shape
    register = "f32" if dtype == "bf16" else dtype
    return f"""  v0 = load x0[i0 + ({rows})*i1] : {register}
  v1 = load x1[({columns})*i0 + i1] : {register}
  v2 = add v0 v1 of {register} : {register}
  store y2[({columns})*i0 + i1] v2 : {register}"""


@pytest.mark.parametrize("lanes", [4, 16])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(64, 64), (33, 70), (130, 64)])
def test_loads_across_the_vector_axis(shape, dtype, lanes):
    x = (torch.randn(*reversed(shape)) * 9).to(TYPES[dtype])
    y = (torch.randn(*shape) * 9).to(TYPES[dtype])
    built = nest(sum_with_transpose(dtype, shape), dtype, shape, lanes)
    buffers = {"x0": x, "x1": y, "y2": torch.empty_like(y)}
    result = run_nest(built, buffers, {}, threads=2)["y2"]
    torch.testing.assert_close(result.view(shape), x.t() + y, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(64, 96), (33, 70)])
def test_stores_across_the_vector_axis(shape):
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
    built = build_nest(kernel, schedule)
    result = run_nest(built, {"x0": x, "x1": y, "y2": torch.empty(columns, rows)}, {}, threads=2)
    torch.testing.assert_close(result["y2"].view(columns, rows), ((x + y) * y).t(), rtol=0, atol=0)


@pytest.mark.broad(3)
@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("channels", "pixels"), [(2, 128), (3, 77), (4, 64), (5, 16), (8, 200)])
def test_pixel_channels_are_interleaved_in_registers(channels, pixels, dtype, lanes):
    register = "f32" if dtype == "bf16" else dtype
    parameters = ", ".join(
        [*(f"x{k}: in {dtype}" for k in "01"), *(f"y{k}: out {dtype}" for k in "23")]
    )
    kernel = parse_kernel(f"""kernel k({parameters}) over i0:3 i1:{pixels} i2:{channels} {{
  v0 = load x0[({channels * pixels})*i0 + ({channels})*i1 + i2] : {register}
  v1 = load x1[({channels * pixels})*i0 + i1 + ({pixels})*i2] : {register}
  v2 = add v0 v1 of {register} : {register}
  store y2[({channels * pixels})*i0 + i1 + ({pixels})*i2] v2 : {register}
  store y3[({channels * pixels})*i0 + ({channels})*i1 + i2] v2 : {register}
}}""")
    schedule = choose_schedule(kernel, Target(lanes, 2))
    assert schedule.loops[-2].axis == "i2" and schedule.loops[-1].axis == "i1"
    x = (torch.randn(3, pixels, channels) * 9).to(TYPES[dtype])
    y = (torch.randn(3, channels, pixels) * 9).to(TYPES[dtype])
    buffers = {"x0": x, "x1": y, "y2": torch.empty_like(y), "y3": torch.empty_like(x)}
    results = run_nest(build_nest(kernel, schedule), buffers, {}, threads=2)
    for name, expected in (("y2", x.transpose(1, 2) + y), ("y3", x + y.transpose(1, 2))):
        torch.testing.assert_close(results[name].view(expected.shape), expected, rtol=0, atol=0)


def test_full_tiles_need_no_gathers():
    text = emit(nest(sum_with_transpose("f32", (128, 64)), "f32", (128, 64), 16))
    assert "shufflevector" in text and "masked.gather" not in text
    assert "masked.gather" in emit(nest(sum_with_transpose("f32", (128, 65)), "f32", (128, 65), 16))
