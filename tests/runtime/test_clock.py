"""Times of a plan's steps, and the plan that tells them."""

import ctypes

import pytest

from tofuse.ir.plan.parse import parse_plan
from tofuse.runtime import cuda
from tofuse.runtime.clock import Clock, best_ns, machine_limits, now
from tofuse.runtime.execute import plan_source

PLAN = """
plan p(t_x{4,1}) {
  t_a = allocate f32[4,4]{4,1}
  launch 0 sin_0(t_x, t_a)
  t_b = call aten.mm.default(t_a, t_x)
  release t_a, t_x
  return t_b
}
"""


def test_a_clock_gives_medians_and_the_last_run():
    clock = Clock()
    for k, begin in enumerate((0, 10_000, 50_000)):
        clock.lap(3, begin, begin + 1000 * (k + 1))
    clock.lap(5, 0, 500)
    assert clock.microseconds() == {3: 2.0, 5: 0.5}
    assert clock.last() == {3: (50_000, 53_000), 5: (0, 500)}
    clock.reset()
    assert clock.microseconds() == {} == clock.last()


def test_only_a_timed_plan_has_laps():
    plan = parse_plan(PLAN)
    plain, timed = plan_source(plan), plan_source(plan, timed=True)
    assert "lap" not in plain and "now" not in plain
    kept = [x for x in timed.splitlines() if "lap(" not in x and "now()" not in x]
    assert kept == plain.splitlines()
    assert [x.strip() for x in timed.splitlines() if "lap(" in x] == [
        "lap(1, begin, now())",
        "lap(2, begin, now())",
    ]


def test_the_machine_does_something():
    bandwidth, arithmetic = machine_limits()
    assert bandwidth > 1e8 and arithmetic > 1e8
    assert best_ns(lambda: sum(range(2000))) > best_ns(lambda: None)


def test_a_bad_index_is_raised_where_we_wait_for_the_gpu(monkeypatch):
    monkeypatch.setattr(cuda, "_names", ["take_0"])
    monkeypatch.setattr(cuda, "_flag", ctypes.c_int32(1))
    with pytest.raises(IndexError, match=r"out of range.*kernel take_0"):
        now()
    now()  # once is enough


def test_a_bad_index_nobody_waited_for_is_a_warning_at_the_end(monkeypatch):
    monkeypatch.setattr(cuda, "_names", ["take_0", "take_1"])
    monkeypatch.setattr(cuda, "_flag", ctypes.c_int32(2))
    with pytest.warns(RuntimeWarning, match="kernel take_1"):
        cuda._last_report()
    cuda._last_report()
