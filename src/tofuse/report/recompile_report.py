"""The report of `tofuse.explain_recompiles`: recompilations and graph breaks, with advice."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from tofuse.report.json_record import Record
from tofuse.report.number_format import plural
from tofuse.report.plain_text import PrintsAsText

INDENT = (0, 0, 0, 2)


@dataclass(frozen=True)
class Recompile:
    """Why a function was compiled again: what differed from a program that it has.

    `line` is the user's line that depends on it; empty if Dynamo does not say. `todo` is what to
    write to avoid it; empty if nothing has to be done.
    """

    function: str
    change: str
    line: str
    todo: str

    @property
    def subject(self) -> str:
        """What changed, without its values."""
        return re.split(r": | was | had ", self.change)[0]


@dataclass(frozen=True)
class GraphBreakReport:
    """Why a function runs in parts: the user's line, the reason, and what to write instead."""

    line: str
    reason: str
    todo: str


@dataclass(frozen=True, repr=False)
class RecompileReport(PrintsAsText):
    """The recompilations and graph breaks of this process, in order."""

    recompiles: tuple[Recompile, ...]
    graph_breaks: tuple[GraphBreakReport, ...]

    def __rich__(self) -> RenderableType:
        return Group(*_blocks(self))

    def as_dict(self) -> Record:
        """Return the report as data for JSON."""
        return {
            "recompiles": [asdict(r) for r in self.recompiles],
            "graph_breaks": [asdict(b) for b in self.graph_breaks],
        }


def _blocks(report: RecompileReport) -> Iterator[RenderableType]:
    yield Text(
        f"{plural(len(report.recompiles), 'recompilation')}, "
        f"{plural(len(report.graph_breaks), 'graph break')}",
        "bold",
    )
    for recompile, count in Counter(report.recompiles).items():
        yield Text.assemble((f"{recompile.function}: ", "bold"), recompile.change, _times(count))
        yield from _details(recompile.line, recompile.todo)
    for broken, count in Counter(report.graph_breaks).items():
        yield Text.assemble(("graph break: ", "bold"), broken.reason, _times(count))
        yield from _details(broken.line, broken.todo)


def _times(count: int) -> str:
    return f" ({count} times)" if count > 1 else ""


def _details(line: str, todo: str) -> Iterator[RenderableType]:
    if line:
        yield Padding(Text(line, "dim"), INDENT)
    if todo:
        yield Padding(Text.assemble(("to do: ", "bold"), todo), INDENT)
