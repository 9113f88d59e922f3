"""Programs that PyTorch runs in our place: the warning, the note, or under `strict` the error."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from tofuse.config import Config
from tofuse.driver.report_sink import ReportSink
from tofuse.report.model import GraphReport


@dataclass(frozen=True)
class Fallback:
    """Says that a program is left to PyTorch, and why; under `strict` that is an error."""

    config: Config
    keep: ReportSink

    def refused(self, reason: str) -> None:
        note = f"PyTorch runs the whole program: {reason}"
        self.keep(GraphReport("inference", notes=(note,)))

    def failed(self, error: Exception) -> None:
        if self.config.strict:
            raise error
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        warnings.warn(f"tofuse leaves a program to PyTorch: {first}", stacklevel=2)
        self.refused(first)
