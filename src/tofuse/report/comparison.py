"""Launches, memory traffic, peak memory and time, before and after fusion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tofuse.report.model import Report
from tofuse.report.number_format import show_us
from tofuse.report.program_view import ProgramView


@dataclass(frozen=True)
class Comparison:
    """A quantity before and after fusion; `unit` is "count", "bytes" or "us"."""

    name: str
    unit: str
    before: float
    after: float
    note: str


def comparisons(report: Report, programs: Sequence[ProgramView]) -> tuple[Comparison, ...]:
    """Compare launches, traffic, peak memory and, if measured, time before and after fusion."""
    rows = [
        Comparison(
            "Launches",
            "count",
            report.launches_before,
            report.launches_after_grouping,
            "before: one per op; after: kernels (a launch group counts once) and library calls",
        ),
        Comparison(
            "Memory traffic",
            "bytes",
            report.bytes_before,
            report.bytes_after,
            "bytes read and written, each tensor once per launch",
        ),
        Comparison(
            "Memory for results",
            "bytes",
            max((m.nbytes for p in programs for m in p.op_memory()), default=0),
            max((m.nbytes for p in programs for m in p.report.live_memory()), default=0),
            "peak of the live results; inputs not counted",
        ),
    ]
    if report.calls is not None:
        launch_time = show_us(sum(r.measured_us or 0.0 for r in report.regions))
        note = (
            f"median of {report.calls.rounds} calls, by PyTorch and by tofuse; "
            f"tofuse's launches alone take {launch_time}"
        )
        rows.insert(0, Comparison("Time", "us", report.calls.eager, report.calls.ours, note))
    return tuple(rows)
