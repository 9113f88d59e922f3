"""Print, dump or trace the text of each compilation stage, and record its time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path

from tofuse.report.call_times import TimeSpan
from tofuse.torch_internals.structured_trace import trace_artifact

_numbers = itertools.count()


class StageLog:
    """The stages of one graph: their times, and their texts on stdout or in a folder."""

    def __init__(self, phase: str, show: tuple[str, ...], dump: Path | None) -> None:
        self.phase: str = phase
        self.show: tuple[str, ...] = show
        self.dump: Path | None = dump
        self.number: int = next(_numbers) if dump else 0
        self.spans: list[TimeSpan] = []
        self.begin: int = time.perf_counter_ns()

    def finish_stage(self, stage: str) -> None:
        """Record the time since the previous stage ended as this stage's."""
        begin = self.spans[-1].end if self.spans else self.begin
        self.spans.append(TimeSpan(stage, begin, time.perf_counter_ns()))

    def log_text(self, stage: str, make: Callable[[], str]) -> None:
        """Print, dump and trace a stage's text; `make` runs only if one of them is enabled."""
        trace_artifact(f"tofuse_{self.phase}_{stage}", make)
        if stage in self.show:
            print(f"--- tofuse {self.phase}: {stage} ---\n{make()}")
        if self.dump is not None:
            self.dump.mkdir(parents=True, exist_ok=True)
            path = self.dump / f"{self.number}_{self.phase}_{stage}.txt"
            path.write_text(make() + "\n")
