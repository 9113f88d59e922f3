"""The reference interpreter against plain torch, one kind of statement at a time."""

import pytest
import torch

from tests.support.kernels import kernel, run_interpreter
from tofuse.errors import VerifyError
from tofuse.ops.philox import uniform


def run(text: str, **buffers: torch.Tensor) -> dict[str, torch.Tensor]:
    return run_interpreter(kernel(text), buffers, {"s0": 3})


def test_load_and_store_with_strides():
    x = torch.arange(12.0)
    got = run(
        "kernel k(x: in f32, y: out f32) over i0:s0 i1:4 sizes s0 {\n"
        "v0 = load x[(4)*i0 + (-1)*i1 + 3] : f32\nstore y[i0 + (s0)*i1] v0 : f32\n}",
        x=x,
        y=torch.empty(12),
    )
    assert torch.equal(got["y"].view(4, 3), x.view(3, 4).flip(1).t())


def test_guarded_load_gives_zero():
    got = run(
        "kernel k(x: in f32, y: out f32) over i0:5 {\nv0 = in_range [i0] 1 3 : b1\n"
        "v1 = load x[i0 + -1] if v0 : f32\nstore y[i0] v1 : f32\n}",
        x=torch.tensor([7.0, 8.0]),
        y=torch.empty(5),
    )
    assert got["y"].tolist() == [0, 7, 8, 0, 0]


@pytest.mark.parametrize("at", ["i0 + 1", "i0 + -1", "(2)*i0"])
def test_address_outside_buffer_raises(at: str):
    text = (
        f"kernel k(x: in f32, y: out f32) over i0:5 {{\nv0 = load x[{at}] : f32\n"
        "store y[i0] v0 : f32\n}"
    )
    with pytest.raises(VerifyError, match="addresses"):
        run(text, x=torch.zeros(5), y=torch.empty(5))


def test_gather_wraps_and_checks_indices():
    text = (
        "kernel k(x: in f32, i: in i64, y: out f32) over i0:3 {{\nv0 = load i[i0] : i64\n"
        "v1 = gather {}x[1] by v0 * 2 below 4 : f32\nstore y[i0] v1 : f32\n}}"
    )
    x, y = torch.arange(8.0), torch.empty(3)
    assert run(text.format("wrap "), x=x, i=torch.tensor([0, -1, 3]), y=y)["y"].tolist() == [
        1,
        7,
        7,
    ]
    with pytest.raises(IndexError):
        run(text.format(""), x=x, i=torch.tensor([0, -1, 3]), y=y)
    with pytest.raises(IndexError):
        run(text.format("wrap "), x=x, i=torch.tensor([0, 4, 3]), y=y)


def test_argmax_and_argmin_match_torch():
    rows = [[1, 5, 5, 0], [float("nan"), 9, float("nan"), 0], [2, 2, 2, 2]]
    x = torch.tensor(rows)
    got = run(
        "kernel k(x: in f32, y: out i64, z: out i64) over i0:3 i1:4 {\n"
        "v0 = load x[(4)*i0 + i1] : f32\n"
        "v1 = reduce argmax<i1> v0 at [i1] : i64\nv2 = reduce argmin<i1> v0 at [i1] : i64\n"
        "store y[i0] v1 : i64\nstore z[i0] v2 : i64\n}",
        x=x.flatten(),
        y=torch.empty(3, dtype=torch.int64),
        z=torch.empty(3, dtype=torch.int64),
    )
    assert torch.equal(got["y"], x.argmax(1)) and torch.equal(got["z"], x.argmin(1))


def test_reduction_over_broadcast_axis():
    got = run(
        "kernel k(x: in f32, y: out f32) over i0:3 i1:5 {\nv0 = load x[i0] : f32\n"
        "v1 = reduce sum<i1> v0 : f32\nstore y[i0] v1 : f32\n}",
        x=torch.tensor([1.0, 2.0, 3.0]),
        y=torch.empty(3),
    )
    assert got["y"].tolist() == [5, 10, 15]


def test_half_precision_rounding():
    x = torch.tensor([1.00390625, 3.14159])
    got = run(
        "kernel k(x: in f32, y: out f32, z: out bf16, u: out f16) over i0:2 {\n"
        "v0 = load x[i0] : f32\nv1 = round_bf16 v0 of f32 : f32\n"
        "store y[i0] v1 : f32\nstore z[i0] v0 : bf16\nstore u[i0] v0 : f16\n}",
        x=x,
        y=torch.empty(2),
        z=torch.empty(2, dtype=torch.bfloat16),
        u=torch.empty(2, dtype=torch.float16),
    )
    assert torch.equal(got["y"], x.bfloat16().float()) and torch.equal(got["z"], x.bfloat16())
    assert torch.equal(got["u"], x.half())


def test_precise_computes_in_float64():
    k = kernel(
        "kernel k(x: in f32, y: out f32) over i0:2 {\nv0 = load x[i0] : f32\n"
        "v1 = reduce sum<i0> v0 : f32\nv2 = sub v1 16777216.0 of f32 : f32\nstore y[0] v2 : f32\n}"
    )
    buffers = {"x": torch.tensor([16777216.0, 1.0]), "y": torch.empty(1)}
    assert run_interpreter(k, buffers, {})["y"].item() == 0
    assert run_interpreter(k, buffers, {}, precise=True)["y"].item() == 1


@pytest.mark.parametrize("shape", [(3, 70), (2, 64), (5, 1)])
def test_uniform_matches_philox(shape: tuple[int, int]):
    rows, cols = shape
    got = run(
        f"kernel k(s: in i64, y: out f32) over i0:{rows} i1:{cols} {{\n"
        f"v0 = uniform s[i0][i1] of {cols} stream 9 : f32\nstore y[({cols})*i0 + i1] v0 : f32\n}}",
        s=torch.tensor([-5, 77]),
        y=torch.empty(rows * cols),
    )
    assert torch.equal(got["y"].view(shape), torch.from_numpy(uniform((-5, 77), shape, 9)))
