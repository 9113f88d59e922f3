"""The clock of a plan's steps, and the text of a timed plan."""

import ctypes

import pytest

from tofuse.backends.cuda.runtime import cuda
from tofuse.backends.cuda.runtime.gpu_driver import replaced_driver
from tofuse.errors import TofuseWarning
from tofuse.ir.parse_plan import parse_plan
from tofuse.runtime.execute import plan_source
from tofuse.runtime.timing import Clock, machine_limits, now

PLAN = """
plan p(t_x{4,1}) {
  t_a = allocate f32[4,4]{4,1}
  launch 0 sin_0(t_x, t_a)
  t_b = call aten.mm.default(t_a, t_x)
  release t_a, t_x
  return t_b
}
"""


def test_a_clock_has_medians_and_the_last_run():
    clock = Clock()
    for k, begin in enumerate((0, 10_000, 50_000)):
        clock.record(3, begin, begin + 1000 * (k + 1))
    clock.record(5, 0, 500)
    assert clock.median_us() == {3: 2.0, 5: 0.5}
    assert clock.last_run() == {3: (50_000, 53_000), 5: (0, 500)}
    clock.reset()
    assert clock.median_us() == {} == clock.last_run()


def test_only_a_timed_plan_records_times():
    plan = parse_plan(PLAN)
    (plain, _), (timed, _) = plan_source(plan), plan_source(plan, timed=True)
    assert "record" not in plain and "now" not in plain
    untimed = [x for x in timed.splitlines() if "record(" not in x and "now()" not in x]
    assert untimed == plain.splitlines()
    assert [x.strip() for x in timed.splitlines() if "record(" in x] == [
        "record(1, begin, now())",
        "record(2, begin, now())",
    ]


def test_machine_limits_are_plausible():
    bandwidth, arithmetic = machine_limits()
    assert bandwidth > 1e8 and arithmetic > 1e8


class FlagDriver:
    """A driver of which only the flag of bad indices is used."""

    def __init__(self, number: int) -> None:
        self.flag = ctypes.c_int32(number)

    def error_flag(self) -> ctypes.c_int32:
        return self.flag


def test_waiting_for_the_gpu_raises_an_index_error(monkeypatch):
    monkeypatch.setattr(cuda, "_kernel_names", ["take_0"])
    with replaced_driver(FlagDriver(1)):  # type: ignore[arg-type]
        with pytest.raises(IndexError, match=r"out of range.*kernel take_0"):
            now()
        now()  # the error is raised once


def test_an_index_error_after_the_last_call_is_a_warning_at_exit(monkeypatch):
    monkeypatch.setattr(cuda, "_kernel_names", ["take_0", "take_1"])
    with replaced_driver(FlagDriver(2)):  # type: ignore[arg-type]
        with pytest.warns(TofuseWarning, match="kernel take_1"):
            cuda._warn_at_exit()
        cuda._warn_at_exit()
