"""Strided and interleaved accesses: every stride, dtype and width, whole vectors and tails."""

import pytest
import torch

from tests.support.kernels import kernel, run_nest
from tofuse.backends.cpu.llvm.emit import emit
from tofuse.backends.cpu.schedule.build_nest import build_nest
from tofuse.backends.cpu.schedule.choose_schedule import choose_schedule
from tofuse.ir.nest import Nest
from tofuse.ir.schedule import Target

TYPES = {
    **{"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64},
    **{"i64": torch.int64, "u8": torch.uint8, "b1": torch.bool},
}
STEPS = [-8, -3, -2, -1, 2, 3, 5, 8]


def register(dtype: str) -> str:
    return "f32" if dtype in ("bf16", "f16") else dtype


def nest(text: str, lanes: int = 16) -> Nest:
    parsed = kernel(text)
    return build_nest(parsed, choose_schedule(parsed, Target(lanes, 2)))


def numbers(count: int, dtype: str) -> torch.Tensor:
    return (torch.rand(count) * 99).to(TYPES[dtype])


@pytest.mark.broad(4)
@pytest.mark.parametrize("lanes", [4, 16])
@pytest.mark.parametrize("count", [1, 15, 64, 77])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("step", STEPS)
def test_strided_loads(step: int, dtype: str, count: int, lanes: int):
    span = abs(step) * (count - 1) + 1
    start = span - 1 if step < 0 else 0
    built = nest(
        f"""kernel k(x0: in {dtype}, y1: out {dtype}) over i0:{count} {{
  v0 = load x0[({step})*i0 + {start}] : {register(dtype)}
  store y1[i0] v0 : {dtype}
}}""".replace("(1)*", ""),
        lanes,
    )
    x = numbers(span, dtype)
    y = run_nest(built, {"x0": x, "y1": torch.empty(count, dtype=x.dtype)}, {}, threads=2)["y1"]
    assert torch.equal(y, x.flip(0)[::-step] if step < 0 else x[::step])


@pytest.mark.broad(6)
@pytest.mark.parametrize("lanes", [4, 16])
@pytest.mark.parametrize("count", [3, 64, 77])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("step", [2, 3, 4, 6, 8, 9, 16])
def test_interleave_groups_reversed(step: int, dtype: str, count: int, lanes: int):
    """All elements of rows of `step`, read and written in opposite order."""
    register_type, lines = register(dtype), []
    for k in range(step):
        lines.append(f"  v{k} = load x0[({step})*i0 + {step - 1 - k}] : {register_type}")
    for k in range(step):
        lines.append(f"  store y1[({step})*i0 + {k}] v{k} : {dtype}")
    body = "\n".join(lines)
    text = f"kernel k(x0: in {dtype}, y1: out {dtype}) over i0:{count} {{\n{body}\n}}"
    x = numbers(step * count, dtype)
    y = run_nest(nest(text, lanes), {"x0": x, "y1": torch.empty_like(x)}, {}, threads=2)["y1"]
    assert torch.equal(y.view(count, step), x.view(count, step).flip(1))


def test_no_gather_or_scatter():
    text = emit(
        nest("""kernel k(x0: in f32, y1: out f32) over i0:77 {
  v0 = load x0[(2)*i0] : f32
  v1 = load x0[(2)*i0 + 1] : f32
  v2 = load x0[(-1)*i0 + 76] : f32
  v3 = add v0 v2 of f32 : f32
  store y1[(2)*i0] v1 : f32
  store y1[(2)*i0 + 1] v3 : f32
}""")
    )
    assert "gather" not in text and "scatter" not in text


def test_strided_store_writes_only_its_elements():
    built = nest("""kernel k(x0: in f32, y1: out f32) over i0:77 {
  v0 = load x0[i0] : f32
  store y1[(3)*i0 + 1] v0 : f32
}""")
    x, y = torch.randn(77), torch.zeros(231)
    result = run_nest(built, {"x0": x, "y1": y}, {})["y1"].view(77, 3)
    assert torch.equal(result[:, 1], x)


def test_guarded_interleave_group():
    built = nest("""kernel k(x0: in f32, y1: out f32) over i0:50 {
  v0 = in_range [i0] 7 41 : b1
  v1 = load x0[(2)*i0 + -14] if v0 : f32
  v2 = load x0[(2)*i0 + -13] if v0 : f32
  v3 = sub v1 v2 of f32 : f32
  store y1[i0] v3 : f32
}""")
    x = torch.randn(34, 2)
    y = run_nest(built, {"x0": x.flatten(), "y1": torch.empty(50)}, {})["y1"]
    expected = torch.zeros(50)
    expected[7:41] = x[:, 0] - x[:, 1]
    assert torch.equal(y, expected)
