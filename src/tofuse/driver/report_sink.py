"""Who receives the report of a compiled graph."""

from __future__ import annotations

from collections.abc import Callable

from tofuse.report.model import (
    GraphReport,
)
from tofuse.runtime.clock import Clock

ReportSink = Callable[
    [GraphReport], "Clock | None"
]  # may answer with a clock to time the plan's steps


def discard_report(report: GraphReport) -> None:
    """Where nobody asks for a report."""
