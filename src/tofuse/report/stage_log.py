"""Print or write the text of each stage as it is reached, and note how long it took."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path

from tofuse.report.model import Span

_numbers = itertools.count()


class Stages:
    """Where the stages of one graph go: to the terminal, to a folder, or nowhere."""

    def __init__(self, phase: str, show: tuple[str, ...], dump: Path | None) -> None:
        self.phase, self.show, self.dump = phase, show, dump
        self.number = next(_numbers) if dump else 0
        self.spans: list[Span] = []
        self.begin = time.perf_counter_ns()

    def done(self, stage: str) -> None:
        """What was done since the last stage ended is this one."""
        begin = self.spans[-1].end if self.spans else self.begin
        self.spans.append(Span(stage, begin, time.perf_counter_ns()))

    def text(self, stage: str, make: Callable[[], str]) -> None:
        """Show one stage; the text is made only if somebody wants it."""
        if stage in self.show:
            print(f"--- tofuse {self.phase}: {stage} ---\n{make()}")
        if self.dump is not None:
            self.dump.mkdir(parents=True, exist_ok=True)
            path = self.dump / f"{self.number}_{self.phase}_{stage}.txt"
            path.write_text(make() + "\n")
