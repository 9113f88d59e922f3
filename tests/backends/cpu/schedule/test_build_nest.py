"""Check the schedule and loops of every case, or why there are none, and their results."""

import contextlib
import itertools
from pathlib import Path

import pytest
import torch

from tests.support.cases import Case, accept, read_cases
from tests.support.kernels import kernel, random_buffers, run_interpreter, run_nest
from tofuse.backends.cpu.schedule.build_nest import build_nest
from tofuse.backends.cpu.schedule.choose_schedule import choose_schedule
from tofuse.ir.affine import AffineExpr
from tofuse.ir.dims import evaluate
from tofuse.ir.kernel import Gather, InRange, Kernel, Load, Store, Uniform
from tofuse.ir.nest import Nest
from tofuse.ir.parse_schedule import parse_schedule
from tofuse.ir.schedule import Schedule, Target
from tofuse.schedule.schedule_legality import Unschedulable

CASES = read_cases(Path(__file__).parent / "build_nest.txt")
SIZES = {"s0": 5, "s1": 37}


def build_case_nest(case: Case) -> Nest:
    head, _, text = case.before.partition("\n")
    k = kernel(text)
    assert repr(k) == text
    words = head.removeprefix("# ")
    if words.startswith("target"):
        lanes, threads = map(int, words.split()[1:])
        return build_nest(k, choose_schedule(k, Target(lanes, threads)))
    return build_nest(k, parse_schedule(words))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_text(case: Case, request: pytest.FixtureRequest):
    try:
        nest = build_case_nest(case)
        text = nest.loops_text
        assert parse_schedule(repr(nest.schedule)) == nest.schedule
    except Unschedulable as e:
        text = f"unschedulable: {e}"
    if request.config.getoption("--accept"):
        accept(case, text)
    else:
        assert text == case.after


@pytest.mark.parametrize("case", CASES, ids=str)
def test_numbers(case: Case):
    try:
        nest = build_case_nest(case)
    except Unschedulable:
        return
    k = nest.kernel
    sizes = {s: SIZES[s] for s in k.symbols}
    buffers = random_buffers(k, buffer_lengths(k, sizes), torch.Generator().manual_seed(5))
    buffers |= {n: t.abs() for n, t in buffers.items() if t.dtype is torch.int64}  # indices
    want = run_interpreter(k, buffers, sizes, precise=True)
    for threads in (1, 3):
        for name, t in run_nest(nest, buffers, sizes, threads).items():
            torch.testing.assert_close(t, want[name], rtol=2e-4, atol=2e-3)


def buffer_lengths(k: Kernel, sizes: dict[str, int]) -> dict[str, int]:
    """Return how many elements of each buffer the kernel accesses."""
    extents = {a.name: evaluate(a.extent, sizes) for a in k.axes}
    found = {b.name: 2 for b in k.buffers}

    def record_access(buffer: str, index: AffineExpr, extra: int = 0) -> None:
        steps = [(evaluate(c, sizes), extents[a] - 1) for a, c in index.terms]
        last = evaluate(index.const, sizes) + sum(c * n for c, n in steps if c > 0)
        found[buffer] = max(found[buffer], last + 1 + extra)

    for s in k.body:
        match s:
            case Load() | Store():
                record_access(s.buffer, s.index)
            case Gather():
                record_access(
                    s.buffer, s.index, evaluate(s.stride, sizes) * (evaluate(s.extent, sizes) - 1)
                )
            case InRange() | Uniform():
                pass
    return found


def test_reduction_of_broadcast_value_is_repeated():
    """Fusion rejects such a kernel, but without another kernel it must be correct."""
    k = kernel(
        """kernel k(x: in f32, y: out i64, z: out f32) over i0:9 i1:40 {
          v0 = load x[i1] : f32
          v1 = reduce argmax<i1> v0 at [i1] : i64
          v2 = reduce sum<i1> v0 : f32
          store y[i0] v1 : i64
          store z[i0] v2 : f32
        }"""
    )
    buffers = random_buffers(k, {"x": 40, "y": 9, "z": 9}, torch.Generator().manual_seed(5))
    want = run_interpreter(k, buffers, {})
    for order in ("i0 i1", "i0/8 i0 i1", "i0 i1/8 i1"):
        schedule = parse_schedule(f"order {order}; parallel 1; vector 4; unroll 2")
        with pytest.raises(Unschedulable):
            build_nest(k, schedule)
        nest = build_nest(k, schedule, repeat_reductions=True)
        for name, t in run_nest(nest, buffers, {}, 3).items():
            torch.testing.assert_close(t, want[name])
    for order in ("i1/8 i0 i1", "i1/8 i1 i0"):  # would add partial sums more than once
        schedule = parse_schedule(f"order {order}; parallel 1; vector 4; unroll 2")
        try:
            nest = build_nest(k, schedule, repeat_reductions=True)
        except Unschedulable:
            continue
        for name, t in run_nest(nest, buffers, {}, 3).items():
            torch.testing.assert_close(t, want[name])


EMPTY_ROWS = [("0", 2), ("s0+-2 sizes s0", 2), ("s0 sizes s0", 0)]


@pytest.mark.parametrize(("rows", "s0"), EMPTY_ROWS)
def test_stores_are_not_repeated_in_loops_that_may_be_empty(rows, s0):
    """Without an iteration, the store of `y` would never run."""
    k = kernel(
        f"""kernel k(x: in f32, y: out f32, z: out f32) over i0:5 i1:2 i2:{rows} {{
          v0 = load x[(2)*i0 + i1] : f32
          v1 = reduce sum<i1> v0 : f32
          v2 = sub v0 v1 of f32 : f32
          store y[(2)*i0 + i1] v2 : f32
          store z[(2)*i0 + i1 + (10)*i2] v2 : f32
        }}"""
    )
    built = 0
    for order, parallel in itertools.product(("i0 i2 i1", "i2 i0 i1"), (0, 1, 2)):
        schedule = parse_schedule(f"order {order}; parallel {parallel}; vector 4; unroll 1")
        with contextlib.suppress(Unschedulable):
            nest = build_nest(k, schedule, repeat_reductions=True)
            buffers = random_buffers(k, {"x": 10, "y": 10, "z": 1}, torch.Generator())
            got, want = (
                run_nest(nest, buffers, {"s0": s0}, 3),
                run_interpreter(k, buffers, {"s0": s0}),
            )
            torch.testing.assert_close(got["y"], want["y"])
            built += 1
    assert built < 6  # the repeated stores are refused


@pytest.mark.parametrize(("rows", "s0"), EMPTY_ROWS)
def test_values_are_not_spilled_in_loops_that_may_be_empty(rows, s0):
    """Without an iteration, the array that `y` reads would stay undefined."""
    k = kernel(
        f"""kernel k(x: in f32, y: out f32, z: out f32) over i0:5 i1:8 i2:9 i3:{rows} {{
          v0 = load x[(8)*i0 + i1] : f32
          v1 = asinh v0 of f32 : f32
          v2 = sin v1 of f32 : f32
          v3 = add v2 1.0 of f32 : f32
          store y[(72)*i0 + i1 + (8)*i2] v2 : f32
          store z[(8)*i0 + i1 + (40)*i3] v3 : f32
        }}"""
    )
    orders = itertools.permutations(("i0", "i1", "i2", "i3"))
    for order, parallel in itertools.product(orders, range(4)):
        words = f"order {' '.join(order)}; parallel {parallel}; vector 4; unroll 1"
        with contextlib.suppress(Unschedulable):
            nest = build_nest(k, parse_schedule(words))
            buffers = random_buffers(k, {"x": 40, "y": 360, "z": 1}, torch.Generator())
            got, want = (
                run_nest(nest, buffers, {"s0": s0}, 3),
                run_interpreter(k, buffers, {"s0": s0}),
            )
            torch.testing.assert_close(got["y"], want["y"])


def test_schedule_text_round_trips():
    schedule = Schedule((), 0, 1, 1)
    assert parse_schedule(repr(schedule)) == schedule
