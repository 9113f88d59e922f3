"""Values that a kernel computes at several neighbouring places, and what that costs."""

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.kernels import kernel
from tofuse.backends.cpu.cost.nest_cost import nest_cost
from tofuse.backends.cpu.cost.shifted_values import shifted_copies
from tofuse.backends.cpu.schedule.build_nest import build_nest
from tofuse.backends.cpu.schedule.choose_schedule import choose_schedule
from tofuse.cost.machine import default_machine
from tofuse.ir.schedule import Target

STENCIL = """
kernel k(x: in f32, y: out f32) over i0:60 i1:500 {{
  a0 = load x[(512)*i0 + i1] : f32
  a1 = load x[(512)*i0 + i1 + {step}] : f32
  a2 = load x[(512)*i0 + i1 + {twice}] : f32
  s0 = add a0 a1 of f32 : f32
  s1 = add a1 a2 of f32 : f32
  e0 = exp s0 of f32 : f32
  e1 = exp s1 of f32 : f32
  d = {op} e1 {other} of f32 : f32
  store y[(500)*i0 + i1] d : f32
}}"""


def copies(step: int, op: str = "sub", other: str = "e0") -> list[list[str]]:
    k = kernel(STENCIL.format(step=step, twice=2 * step, op=op, other=other))
    return [sorted(s.name for s in group) for group in shifted_copies(k)]


@pytest.mark.parametrize("step", [1, 2, 512, 513, 511])
def test_values_a_step_apart_are_copies(step: int):
    assert copies(step) == [["s0", "s1"], ["e0", "e1"]]


def test_values_half_a_row_apart_are_not():
    assert copies(250) == []


def test_other_formulas_are_not():
    assert copies(1, "mul", "a0")[1:] == [["e0", "e1"]]
    k = kernel(STENCIL.format(step=1, twice=512, op="sub", other="e0"))
    assert shifted_copies(k) == []  # a sum along the row, and one across rows and columns


def test_the_least_time_has_no_copies():
    near, far = (
        nest_cost(build_nest(k, choose_schedule(k, Target(16, 1))), default_machine(1, 16))
        for k in (
            kernel(STENCIL.format(step=step, twice=2 * step, op="sub", other="e0"))
            for step in (1, 250)
        )
    )
    assert near.recomputed_adds > 0 == far.recomputed_adds
    assert near.least_us < far.least_us <= near.us


def laplace(u):
    return u.roll(1, 0) + u.roll(-1, 0) + u.roll(1, 1) + u.roll(-1, 1) - 4 * u


def steps(u):
    for _ in range(3):
        u = u + 0.1 * laplace(u) * u
    return u


def padded_steps(u):
    for _ in range(3):
        inner = u[1:-1, 1:-1]
        around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
        u = F.pad(inner + 0.1 * (around - 4 * inner), (1, 1, 1, 1))
    return u


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("program", [steps, padded_steps])
@pytest.mark.parametrize("shape", [(300, 301), (5, 3)], ids=str)
def test_each_step_of_a_stencil_is_a_kernel(program, shape):
    u = torch.rand(shape, dtype=torch.float64)
    torch.testing.assert_close(tofuse.compile(program)(u), program(u))
    if shape[0] > 100:
        assert len(tofuse.explain(program)(u).kernels) == 3
