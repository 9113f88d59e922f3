"""Report that a whole program falls back to PyTorch."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from tofuse.config import Config
from tofuse.driver.report_sink import ReportSink
from tofuse.report.model import GraphReport


@dataclass(frozen=True)
class Fallback:
    """Reports a program that falls back to PyTorch; under `strict`, raises the error."""

    config: Config
    sink: ReportSink

    def report(self, reason: str) -> None:
        """Send a report that gives the reason."""
        note = f"PyTorch runs the whole program: {reason}"
        self.sink(GraphReport("inference", notes=(note,)))

    def warn(self, error: Exception) -> None:
        """Warn and send a report; under `strict`, raise the error instead."""
        if self.config.strict:
            raise error
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        warnings.warn(f"tofuse runs a whole program through PyTorch: {reason}", stacklevel=2)
        self.report(reason)
