"""Recurrences under many schedules and in the interpreter, against loops over tensors."""

import pytest
import torch

from tests.support.kernels import kernel, run_interpreter, run_llvm, schedules
from tofuse.backends.cpu.schedule.build_nest import build_nest
from tofuse.ir.parse_nest import parse_nest
from tofuse.ir.parse_schedule import parse_schedule
from tofuse.schedule.schedule_legality import Unschedulable

# s' = s * x + a; the state starts with y; both are stored, before and after each step
LINEAR = """
kernel k(x: in {t}, y: in {t}, before: out {t}, after: out {t}) over i0:{rows} i1:{steps} i2:{n} {{
  x0 = load x[({size})*i0 + ({n})*i1 + i2] : {t}
  y0 = load y[({n})*i0 + i2] : {t}
  p = previous<i1> y0 reads x0 : {t}
  m = mul p x0 of {t} : {t}
  a = add m 3 of {t} : {t}
  q = next p a : {t}
  store before[({size})*i0 + ({n})*i1 + i2] p : {t}
  store after[({size})*i0 + ({n})*i1 + i2] q : {t}
}}"""

# two states that start with constants, a sum over lanes inside the step, and the last state
COUPLED = """
kernel k(x: in f32, out: out f32, last: out f32) over i0:3 i1:17 i2:21 {
  x0 = load x[(357)*i0 + (21)*i1 + i2] : f32
  p = previous<i1> 0 reads x0 : f32
  q = previous<i1> 1 reads x0 : f32
  s = sin q of f32 : f32
  a = add p x0 of f32 : f32
  b = mul a 0.5 of f32 : f32
  c = sub s b of f32 : f32
  np = next p c : f32
  nq = next q b : f32
  d = mul np q of f32 : f32
  r = reduce sum<i2> d : f32
  store out[(17)*i0 + i1] r : f32
  g = in_range [i1] 16 17 : b1
  w = where g nq -inf of f32 : f32
  l = reduce amax<i1> w : f32
  store last[(21)*i0 + i2] l : f32
}"""

SHAPES = ((3, 5, 33), (1, 9, 1), (4, 1, 7), (1, 40, 64), (9, 3, 130), (2, 6, 0), (0, 3, 4))


@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "i64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_linear_recurrence(shape: tuple[int, int, int], dtype: str):
    rows, steps, n = shape
    k = kernel(LINEAR.format(t=dtype, rows=rows, steps=steps, n=n, size=steps * n))
    types = {"f32": torch.float32, "f64": torch.float64, "i32": torch.int32, "i64": torch.int64}
    torch_dtype = types[dtype]
    x = (torch.randn(rows, steps, n) * 2).to(torch_dtype)
    y = (torch.randn(rows, n) * 4).to(torch_dtype)
    state, before, after = y, [], []
    for step in range(steps):
        before.append(state)
        state = state * x[:, step] + 3
        after.append(state)
    want = {"before": torch.stack(before, 1).flatten(), "after": torch.stack(after, 1).flatten()}
    empty = {name: torch.empty(x.numel(), dtype=torch_dtype) for name in want}
    buffers = {"x": x.flatten(), "y": y.flatten(), **empty}
    found = run_interpreter(k, buffers, {})
    for name, t in want.items():
        torch.testing.assert_close(found[name], t, rtol=1e-5, atol=1e-4)
    ran = 0
    for schedule in schedules(k):
        got = run_llvm(k, schedule, buffers, {}, 3)
        ran += 1
        for name, t in want.items():
            torch.testing.assert_close(got[name], t, rtol=1e-4, atol=1e-3, msg=f"{name} {schedule}")
    assert ran


def test_coupled_states_and_sums():
    k = kernel(COUPLED)
    x = torch.randn(3, 17, 21)
    p, q, out = torch.zeros(3, 21), torch.ones(3, 21), []
    for step in range(17):
        b = (p + x[:, step]) * 0.5
        p, old = q.sin() - b, q
        q = b
        out.append((p * old).sum(-1))
    want = {"out": torch.stack(out, 1).flatten(), "last": q.flatten()}
    buffers = {"x": x.flatten(), "out": torch.empty(51), "last": torch.empty(63)}
    found = run_interpreter(k, buffers, {})
    ran = 0
    for schedule in schedules(
        k,
        "order i1 i0 i2; parallel 0; vector 16; unroll 1",
        "order i0 i1 i2; parallel 1; vector 8; unroll 2",
        "order i0/2 i1 i0 i2; parallel 1; vector 4; unroll 1",
        "order i1 i2 i0; parallel 0; vector 1; unroll 1",
    ):
        got = run_llvm(k, schedule, buffers, {}, 2)
        ran += 1
        for name, t in want.items():
            torch.testing.assert_close(found[name], t, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(got[name], t, rtol=1e-4, atol=1e-4, msg=f"{name} {schedule}")
    assert ran


@pytest.mark.parametrize(
    "loops",
    [
        "order i1 i0 i2; parallel 1; vector 1; unroll 1",
        "order i0 i2 i1; parallel 1; vector 4; unroll 1",
        "order i1/4 i0 i1 i2; parallel 0; vector 4; unroll 1",
        "order i0 jam 2 i1 i2; parallel 0; vector 4; unroll 1",
    ],
)
def test_steps_do_not_run_at_once(loops: str):
    k = kernel(COUPLED)
    with pytest.raises(Unschedulable):
        build_nest(k, parse_schedule(loops))


def test_the_text_of_the_loops_says_what_is_carried():
    k = kernel(COUPLED)
    for schedule in schedules(k):
        nest = build_nest(k, schedule)
        assert "carry p" in repr(nest) and "carry q" in repr(nest)
        assert repr(parse_nest(repr(nest))) == repr(nest)
