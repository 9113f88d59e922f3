"""Whole kernels under many schedules and thread counts, against the reference interpreter."""

from collections.abc import Mapping

import pytest
import torch

from tests.support.kernels import (
    kernel,
    random_buffers,
    random_tensor,
    run_interpreter,
    run_llvm,
    schedules,
)
from tofuse.backends.cpu.schedule.build_nest import build_nest
from tofuse.ir.kernel import Kernel
from tofuse.ir.schedule import Loop, Schedule
from tofuse.schedule.schedule_legality import Unschedulable

GENERATOR = torch.Generator().manual_seed(11)


def unusual_schedules(k: Kernel) -> list[Schedule]:
    """Return loop orders, strips, bands, lanes and unrolls that no heuristic would choose."""
    names = [a.name for a in k.axes]
    found = []
    for start in range(len(names)):
        order = [Loop(a) for a in names[start:] + names[:start]]
        for strip in (0, 8, 16):
            loops = [Loop(order[-1].axis, strip), *order] if strip else order
            middle = [*order[:-1], Loop(order[-1].axis, strip), order[-1]] if strip else order
            found.append(Schedule(tuple(loops), min(1, len(loops)), 4, 1))
            found.append(Schedule(tuple(middle), min(2, len(middle) - 1), 16, 2))
            found.append(Schedule(tuple(middle), 0, 8, 4))
            found.append(Schedule(tuple(loops), min(2, len(loops)), 1, 1))
    return list(dict.fromkeys(found))


def assert_matches_interpreter(
    k: Kernel, lengths: Mapping[str, int], sizes: Mapping[str, int], **inputs
) -> None:
    """Check that every schedule and thread count gives the result of the interpreter."""
    buffers = random_buffers(k, lengths, GENERATOR) | inputs
    want = run_interpreter(k, buffers, sizes)
    accepted = 0
    for schedule in [*schedules(k), *unusual_schedules(k)]:
        try:
            build_nest(k, schedule)
        except Unschedulable:
            continue
        accepted += 1
        for threads in (1, 3):
            got = run_llvm(k, schedule, buffers, sizes, threads)
            for name, t in want.items():
                where = f"{name} by {schedule}: "
                torch.testing.assert_close(got[name], t, equal_nan=True, msg=where.__add__)
    assert accepted >= (4 if k.axes else 1)


ROW_AND_COLUMN = """\
kernel k(x: in f32, w: in f32, y: out f32, z: out f32, u: out f32) over i0:s0 i1:s1 sizes s0 s1 {
  v0 = load x[(s1)*i0 + i1] : f32
  v1 = reduce sum<i1> v0 : f32
  v2 = div v1 s1 of f32 : f32
  v3 = sub v0 v2 of f32 : f32
  v4 = load w[i1] : f32
  v5 = mul v3 v4 of f32 : f32
  v6 = reduce sum<i0> v5 : f32
  v7 = reduce amax<i0,i1> v5 : f32
  store y[(s1)*i0 + i1] v5 : f32
  store z[i1] v6 : f32
  store u[0] v7 : f32
}"""

CASES: dict[str, tuple[str, dict[str, int], dict[str, int]]] = {
    "values shared by rows": (
        """kernel k(x: in f32, w: in f32, y: out f32, z: out f32) over i0:9 i1:11 i2:37 {
          v0 = load w[(37)*i0 + i2] : f32
          v1 = erf v0 of f32 : f32
          v2 = load w[i2] : f32
          v3 = exp v2 of f32 : f32
          v4 = load x[(407)*i0 + (37)*i1 + i2] : f32
          v5 = mul v4 v1 of f32 : f32
          v6 = add v5 v3 of f32 : f32
          store y[(407)*i0 + (37)*i1 + i2] v6 : f32
          store z[(37)*i0 + i2] v1 : f32
        }""",
        {"x": 3663, "w": 333, "y": 3663, "z": 333},
        {},
    ),
    "transpose": (
        """kernel k(x: in f32, y: out f32) over i0:37 i1:29 {
          v0 = load x[i0 + (37)*i1] : f32
          v1 = mul v0 2.0 of f32 : f32
          store y[(29)*i0 + i1] v1 : f32
        }""",
        {"x": 37 * 29, "y": 37 * 29},
        {},
    ),
    "sum with transpose": (
        """kernel k(x: in bf16, y: out bf16) over i0:33 i1:33 {
          v0 = load x[(33)*i0 + i1] : f32
          v1 = load x[i0 + (33)*i1] : f32
          v2 = add v0 v1 of f32 : f32
          store y[(33)*i0 + i1] v2 : bf16
        }""",
        {"x": 33 * 33, "y": 33 * 33},
        {},
    ),
    "negative strides": (
        """kernel k(x: in f64, y: out f64) over i0:5 i1:23 {
          v0 = load x[(23)*i0 + (-1)*i1 + 22] : f64
          v1 = load x[(-23)*i0 + (-1)*i1 + 114] : f64
          v2 = sub v0 v1 of f64 : f64
          store y[(-23)*i0 + (-1)*i1 + 114] v2 : f64
        }""",
        {"x": 115, "y": 115},
        {},
    ),
    "stride of three": (
        """kernel k(x: in i32, y: out i32) over i0:4 i1:21 {
          v0 = load x[(70)*i0 + (3)*i1 + 2] : i32
          v1 = add v0 1 of i32 : i32
          store y[(42)*i0 + (2)*i1 + 1] v1 : i32
        }""",
        {"x": 300, "y": 168},
        {},
    ),
    "softmax over the first axis": (
        """kernel k(x: in f32, y: out f32) over i0:19 i1:45 {
          v0 = load x[(45)*i0 + i1] : f32
          v1 = reduce amax<i0> v0 : f32
          v2 = sub v0 v1 of f32 : f32
          v3 = exp v2 of f32 : f32
          v4 = reduce sum<i0> v3 : f32
          v5 = div v3 v4 of f32 : f32
          store y[(45)*i0 + i1] v5 : f32
        }""",
        {"x": 855, "y": 855},
        {},
    ),
    "row and column reductions": (
        ROW_AND_COLUMN,
        {"x": 31 * 70, "w": 70, "y": 31 * 70, "z": 70, "u": 1},
        {"s0": 31, "s1": 70},
    ),
    "the middle axis": (
        """kernel k(x: in f32, y: out f32, z: out i64) over i0:6 i1:11 i2:18 {
          v0 = load x[(198)*i0 + (18)*i1 + i2] : f32
          v1 = reduce sum<i1> v0 : f32
          v2 = reduce argmax<i1> v0 at [i1] : i64
          store y[(18)*i0 + i2] v1 : f32
          store z[(18)*i0 + i2] v2 : i64
        }""",
        {"x": 1188, "y": 108, "z": 108},
        {},
    ),
    "guarded concat operands": (
        """kernel k(x: in f32, e: in f32, y: out f32) over i0:5 i1:41 {
          v0 = in_range [i1] 3 20 : b1
          v1 = load x[(17)*i0 + i1 + -3] if v0 : f32
          v2 = in_range [i0] 1 4 if v0 : b1
          v3 = load e[i0 + -1] if v2 : f32
          v4 = where v0 v1 -0.0 of f32 : f32
          v5 = add v4 v3 of f32 : f32
          store y[(41)*i0 + i1] v5 : f32
        }""",
        {"x": 85, "e": 3, "y": 205},
        {},
    ),
    "guard on rows": (
        """kernel k(x: in f16, y: out f16) over i0:9 i1:33 {
          v0 = in_range [i0] 2 7 : b1
          v1 = load x[(33)*i0 + i1 + -66] if v0 : f32
          store y[(33)*i0 + i1] v1 : f16
        }""",
        {"x": 165, "y": 297},
        {},
    ),
    "empty axis": (
        """kernel k(x: in f32, y: out f32, z: out f32) over i0:0 i1:5 {
          v0 = load x[(5)*i0 + i1] : f32
          v1 = reduce sum<i0> v0 : f32
          store y[(5)*i0 + i1] v0 : f32
          store z[i1] v1 : f32
        }""",
        {"x": 0, "y": 0, "z": 5},
        {},
    ),
    "iota and sizes": (
        """kernel k(y: out i64, z: out f32, u: out b1) over i0:s0 i1:13 sizes s0 {
          v0 = iota [(2*s0)*i0 + (-3)*i1 + s0+1] : i64
          v1 = iota [(-1)*i1] : f32
          v2 = mul v1 s0 of f32 : f32
          v3 = in_range [(13)*i0 + i1] s0 2*s0 : b1
          store y[(13)*i0 + i1] v0 : i64
          store z[(13)*i0 + i1] v2 : f32
          store u[(13)*i0 + i1] v3 : b1
        }""",
        {"y": 52, "z": 52, "u": 52},
        {"s0": 4},
    ),
    "constants": (
        """kernel k(y: out f32, z: out b1, u: out i64) over i0:35 sizes s0 {
          store y[i0] nan : f32
          store z[i0] True : b1
          store u[0] 7*s0 : i64
        }""",
        {"y": 35, "z": 35, "u": 1},
        {"s0": 4},
    ),
    "no axes": (
        """kernel k(x: in f32, y: out f32) over 1 {
          v0 = load x[3] : f32
          v1 = exp v0 of f32 : f32
          store y[0] v1 : f32
        }""",
        {"x": 4, "y": 1},
        {},
    ),
    "nontemporal stores": (
        "kernel k(x: in f32, y: nontemporal f32, z: nontemporal bf16, u: nontemporal f32)"
        """ over i0:6 i1:80 {
          v0 = load x[(80)*i0 + i1] : f32
          v1 = neg v0 of f32 : f32
          store y[(80)*i0 + i1] v1 : f32
          store z[(80)*i0 + i1] v1 : bf16
          store u[(81)*i0 + i1] v1 : f32
        }""",
        {"x": 480, "y": 480, "z": 480, "u": 486},
        {},
    ),
    "row read three times": (
        """kernel k(x: in f32, y: out f32) over i0:4 i1:5 i2:21 {
          v0 = load x[(105)*i0 + (21)*i1 + i2] : f32
          v1 = reduce sum<i1,i2> v0 : f32
          v2 = mul v0 v1 of f32 : f32
          v3 = exp v2 of f32 : f32
          v4 = reduce amax<i2> v3 : f32
          v5 = div v3 v4 of f32 : f32
          v6 = reduce sum<i1> v5 : f32
          v7 = sub v5 v6 of f32 : f32
          store y[(105)*i0 + (21)*i1 + i2] v7 : f32
        }""",
        {"x": 420, "y": 420},
        {},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_kernel(name: str):
    text, lengths, sizes = CASES[name]
    assert_matches_interpreter(kernel(text), lengths, sizes)


GATHER = """kernel k(w: in f32, i: in i64, y: out f32) over i0:9 i1:37 {{
  v0 = load i[{by}] : i64
  v1 = gather {wrap}w[{at}] by v0 * {stride} below 11 : f32
  v2 = mul v1 2.0 of f32 : f32
  store y[(37)*i0 + i1] v2 : f32
}}"""
GATHERS = {
    "rows": {"by": "i0", "wrap": "", "at": "i1", "stride": 37},
    "rows, wrapped": {"by": "i0", "wrap": "wrap ", "at": "i1", "stride": 37},
    "elements": {"by": "(37)*i0 + i1", "wrap": "", "at": "(11)*i0", "stride": 1},
    "columns, wrapped": {"by": "i1", "wrap": "wrap ", "at": "(11)*i0", "stride": 1},
}


@pytest.mark.parametrize("name", GATHERS)
def test_gather(name: str):
    k = kernel(GATHER.format(**GATHERS[name]))
    low = -11 if GATHERS[name]["wrap"] else 0
    index = torch.randint(low, 11, (9 * 37,), generator=GENERATOR)
    assert_matches_interpreter(k, {"w": 11 * 37, "i": 9 * 37, "y": 333}, {}, i=index)


OUT_OF_RANGE = (11, -1, -12, 2**62, -(2**63))  # -1 is valid if indices wrap


@pytest.mark.parametrize(
    "name, bad",
    [(n, b) for n in GATHERS for b in OUT_OF_RANGE if b != -1 or not GATHERS[n]["wrap"]],
)
def test_gather_out_of_range(name: str, bad: int):
    """One bad index at any position raises IndexError, and nothing is read there."""
    k = kernel(GATHER.format(**GATHERS[name]))
    buffers = random_buffers(k, {"w": 11 * 37, "i": 9 * 37, "y": 333}, GENERATOR)
    used = {"i0": 9, "i1": 37}.get(str(GATHERS[name]["by"]), 333)
    for position in (0, used - 1):
        buffers["i"] = torch.randint(0, 11, (333,), generator=GENERATOR)
        buffers["i"][position] = bad
        with pytest.raises(IndexError):
            run_interpreter(k, buffers, {})
        for schedule in schedules(k, lanes=(1, 16)):
            for threads in (1, 3):
                with pytest.raises(IndexError):
                    run_llvm(k, schedule, buffers, {}, threads)
    buffers["i"][-1:] = 0
    buffers["i"] = buffers["i"].clamp(0, 10)
    for schedule in schedules(k, lanes=(1, 16)):  # the flag is reset
        run_llvm(k, schedule, buffers, {}, 1)


def test_guarded_gather_ignores_masked_indices():
    k = kernel(
        """kernel k(w: in f32, i: in i64, y: out f32) over i0:50 {
          v0 = in_range [i0] 0 30 : b1
          v1 = load i[i0] : i64
          v2 = gather w[0] by v1 * 1 below 5 if v0 : f32
          store y[i0] v2 : f32
        }"""
    )
    index = torch.cat([torch.arange(30) % 5, torch.full((20,), 99)])
    assert_matches_interpreter(k, {"w": 5, "i": 50, "y": 50}, {}, i=index)


def test_small_symbolic_sizes():
    """With a small or empty symbolic extent, nothing is read or written outside it."""
    k = kernel(
        """kernel k(x: in f32, y: out f32, z: out f32) over i0:s0 i1:s1 sizes s0 s1 {
          v0 = load x[(s1)*i0 + i1] : f32
          v1 = reduce sum<i1> v0 : f32
          v2 = sub v0 v1 of f32 : f32
          store y[(s1)*i0 + i1] v2 : f32
          store z[i0] v1 : f32
        }"""
    )
    for s0, s1 in ((0, 3), (3, 0), (1, 1), (2, 17)):
        sizes, n = {"s0": s0, "s1": s1}, s0 * s1
        buffers = {"x": random_tensor(n, torch.float32, GENERATOR), "y": torch.empty(n)}
        buffers["z"] = torch.empty(s0)
        want = run_interpreter(k, buffers, sizes)
        for schedule in schedules(k):
            got = run_llvm(k, schedule, buffers, sizes, 3)
            for name, t in want.items():
                torch.testing.assert_close(got[name], t)
