"""Scans along any axis, in both directions, under many schedules, against the interpreter."""

import math
from collections.abc import Sequence

import pytest
import torch

from tests.support.kernels import Buffers, kernel, run_interpreter, run_llvm, schedules
from tests.support.numbers import TORCH_DTYPES
from tofuse.backends.cpu.schedule.build_nest import build_nest
from tofuse.ir.dims import contiguous_strides
from tofuse.ir.kernel import Kernel
from tofuse.ir.parse_nest import parse_nest
from tofuse.ir.parse_schedule import parse_schedule
from tofuse.ir.types import DType
from tofuse.schedule.schedule_legality import Unschedulable

OPS = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")
SHAPES = ((7, 13), (70,), (1025,), (3, 5, 9), (64, 130), (5, 1), (1, 33), (0, 4), (4, 0))
SPECIAL = (float("nan"), float("inf"), float("-inf"), 0.0, -0.0)


def scans(shape: Sequence[int], dim: int, dtype: DType, reverse: bool) -> Kernel:
    """Return a kernel with a scan of each kind, and with a sum of the elements."""
    at = " + ".join(f"({s})*i{k}" for k, s in enumerate(contiguous_strides(tuple(shape))))
    ops = OPS if dtype.is_float else OPS[:-1]
    outs = ", ".join(f"y{k}: out {dtype.value}" for k in range(len(ops)))
    axes = " ".join(f"i{k}:{n}" for k, n in enumerate(shape))
    down = " down" if reverse else ""
    lines = [f"v = load x[{at}] : {dtype.value}"]
    for k, op in enumerate(ops):
        lines.append(f"s{k} = scan {op}<i{dim}> v{down} : {dtype.value}")
        lines.append(f"store y{k}[{at}] s{k} : {dtype.value}")
    head = f"kernel k(x: in {dtype.value}, {outs}) over {axes} {{"
    return kernel("\n".join([head, *lines, "}"]))


def buffers_of(k: Kernel, x: torch.Tensor) -> Buffers:
    return {"x": x, **{b.name: torch.empty_like(x) for b in k.buffers[1:]}}


def numbers(dtype: DType, count: int) -> torch.Tensor:
    """Return values close to one, so that products stay finite."""
    generator = torch.Generator().manual_seed(count)
    x = 1 + torch.randn(count, generator=generator) / 64
    return (x if dtype.is_float else 3 * x).to(TORCH_DTYPES[dtype])


def check(k: Kernel, buffers: Buffers, threads: int) -> None:
    want = run_interpreter(k, buffers, {})
    tolerance = 1e-12 if buffers["x"].dtype is torch.float64 else 2e-5
    for schedule in schedules(k):
        got = run_llvm(k, schedule, buffers, {}, threads)
        for name, t in want.items():
            torch.testing.assert_close(
                got[name],
                t,
                rtol=tolerance,
                atol=tolerance,
                equal_nan=True,
                msg=f"{name} by {schedule}",
            )


@pytest.mark.parametrize("reverse", [False, True], ids=["up", "down"])
@pytest.mark.parametrize("dtype", [DType.F64, DType.F32, DType.I64, DType.I32], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_scan(shape: tuple[int, ...], dtype: DType, reverse: bool):
    for dim in range(len(shape)):
        k = scans(shape, dim, dtype, reverse)
        check(k, buffers_of(k, numbers(dtype, math.prod(shape))), 3)


@pytest.mark.parametrize("reverse", [False, True], ids=["up", "down"])
@pytest.mark.parametrize("value", SPECIAL)
def test_special_values_at_every_position(value: float, reverse: bool):
    width = 35
    rows = torch.full((width, width), 0.5).fill_diagonal_(value)
    rows = torch.cat([rows, rows.flip(0).masked_fill(rows == 0.5, value)])
    for dim in (0, 1):
        k = scans(tuple(rows.shape), dim, DType.F32, reverse)
        check(k, buffers_of(k, rows.flatten()), 1)


def test_the_later_of_equal_extrema_wins():
    """As in PyTorch: the sign of a zero is that of the last one."""
    x = torch.tensor([0.0, -0.0, 0.0, -1.0, -0.0] * 9)
    k = scans((45,), 0, DType.F32, reverse=False)
    for schedule in schedules(k):
        got = run_llvm(k, schedule, buffers_of(k, x), {})["y2"]
        assert torch.equal(got.signbit(), x.cummax(0).values.signbit()), schedule


MIXED = """
kernel k(x: in f32, y: out f32, z: out f32) over i0:9 i1:50 {
  v = load x[(50)*i0 + i1] : f32
  s = scan cumsum<i1> v down : f32
  t = scan cumprod<i1> v down : f32
  w = add s t of f32 : f32
  r = reduce amax<i1> w : f32
  q = sub s r of f32 : f32
  store y[(50)*i0 + i1] q : f32
  store z[i0] r : f32
}"""


def test_a_scan_before_and_after_a_reduction_of_its_row():
    k = kernel(MIXED)
    buffers = {"x": numbers(DType.F32, 450), "y": torch.empty(450), "z": torch.empty(9)}
    want = run_interpreter(k, buffers, {}, precise=True)
    for schedule in schedules(k):
        got = run_llvm(k, schedule, buffers, {}, 2)
        for name, t in want.items():
            torch.testing.assert_close(got[name], t, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("reverse", [False, True], ids=["up", "down"])
def test_orders_of_loops(reverse: bool):
    k = scans((6, 10, 40), 1, DType.F32, reverse)
    buffers = buffers_of(k, numbers(DType.F32, 2400))
    want = run_interpreter(k, buffers, {})
    for text in (
        "order i1 i0 i2; parallel 0; vector 16; unroll 1",
        "order i0 i1 i2; parallel 1; vector 8; unroll 2",
        "order i2/16 i0 i1 i2; parallel 2; vector 4; unroll 2",
        "order i0/2 i1 i0 i2; parallel 1; vector 4; unroll 1",
        "order i0 i2 i1; parallel 2; vector 4; unroll 4",
        "order i2 i0 i1; parallel 1; vector 1; unroll 1",
    ):
        got = run_llvm(k, parse_schedule(text), buffers, {}, 2)
        for name, t in want.items():
            torch.testing.assert_close(got[name], t, rtol=2e-5, atol=2e-5, msg=f"{name}, {text}")


@pytest.mark.parametrize(
    "text",
    [
        "order i0 i1; parallel 1; vector 1; unroll 1",
        "order i0/4 i0 i1; parallel 0; vector 4; unroll 1",
        "order i0 jam 2 i1; parallel 0; vector 4; unroll 1",
    ],
)
def test_steps_run_one_after_another_in_one_loop(text: str):
    k = scans((8, 16), 0, DType.F32, reverse=False)
    with pytest.raises(Unschedulable, match="one after another"):
        build_nest(k, parse_schedule(text))


def test_no_loop_runs_in_both_directions():
    k = kernel(MIXED.replace("v down : f32\n  w", "v : f32\n  w"))
    with pytest.raises(Unschedulable, match="both directions"):
        build_nest(k, parse_schedule("order i0 i1; parallel 1; vector 16; unroll 1"))


REPEATED = """
kernel k(x: in f32, w: in f32, y: out f32, z: out f32) over i0:5 i1:6 i2:7 {
  v = load x[(6)*i0 + i1] : f32
  s = scan cumsum<i0> v : f32
  u = load w[(7)*i1 + i2] : f32
  p = mul s u of f32 : f32
  r = reduce sum<i1> p : f32
  store y[(6)*i0 + i1] s : f32
  store z[(7)*i0 + i2] r : f32
}"""


def test_a_step_does_not_run_again_for_other_axes():
    """A loop over i2 around the loop over i1 would add every element seven times."""
    with pytest.raises(Unschedulable, match="iteration spaces differ"):
        build_nest(
            kernel(REPEATED),
            parse_schedule("order i0 i2 i1; parallel 0; vector 4; unroll 1"),
        )


UNREAD = """
kernel k(x: in f32, y: out f32, z: out f32) over i0:5 i1:6 i2:7 {
  v = load x[(6)*i0 + i1] : f32
  s = scan cumsum<i0> v : f32
  store y[(6)*i0 + i1] s : f32
  store z[(42)*i0 + (7)*i1 + i2] v : f32
}"""


def test_a_loop_carries_no_scan_whose_results_moved_out():
    nest = build_nest(
        kernel(UNREAD), parse_schedule("order i0 i1 i2; parallel 0; vector 4; unroll 1")
    )
    assert repr(nest).count("carry s") == 1


LAST_ROW = """
kernel k(x: in f32, y: out f32) over i0:4 i1:6 i2:40 {
  v = load x[(240)*i0 + (40)*i1 + i2] : f32
  s = scan cummax<i0> v : f32
  m = reduce sum<i2> s : f32
  d = sub s m of f32 : f32
  q = mul d d of f32 : f32
  n = reduce sum<i1,i2> q : f32
  r = div s n of f32 : f32
  store y[(240)*i0 + (40)*i1 + i2] r : f32
}"""


def test_an_array_of_the_last_row_is_not_read_for_all_rows():
    """The loop over i1 keeps one row of the scan; the pass after it needs all of them."""
    k = kernel(LAST_ROW)
    for schedule in schedules(k):
        with pytest.raises(Unschedulable, match="iteration spaces differ"):
            build_nest(k, schedule)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64], ids=str)
def test_no_product_or_sum_of_a_window_overflows(dtype: DType):
    large = 1e20 if dtype is DType.F32 else 1e200
    greatest = torch.finfo(TORCH_DTYPES[dtype]).max
    rows = torch.tensor(
        [[1 / large, large, large, 1 / large] * 9, [-greatest, greatest, greatest, -greatest] * 9],
        dtype=TORCH_DTYPES[dtype],
    )
    for row, op in zip(rows, ("cumprod", "cumsum"), strict=True):
        k = scans((36,), 0, dtype, reverse=False)
        name = f"y{OPS.index(op)}"
        for schedule in schedules(k):
            got = run_llvm(k, schedule, buffers_of(k, row), {})[name]
            assert got.isfinite().all(), (op, schedule)


def test_the_text_of_a_nest_with_carries_parses():
    k = scans((6, 40), 0, DType.F32, reverse=True)
    nest = build_nest(k, parse_schedule("order i0 i1; parallel 0; vector 16; unroll 1"))
    text = repr(nest)
    assert "carry s0 in s0.carry.keep" in text and "scan cumsum<i0> v down : f32" in text
    assert repr(parse_nest(text)) == text
