"""The receiver of the report of a compiled graph."""

from __future__ import annotations

from collections.abc import Callable

from tofuse.report.model import GraphReport
from tofuse.runtime.clock import Clock

# receives a report; may return a clock that times the plan's steps
ReportSink = Callable[[GraphReport], "Clock | None"]


def discard_report(report: GraphReport) -> None:
    """Discard the report."""
