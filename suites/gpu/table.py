"""The golden table of GPU kernels, what a kernel must keep to, and the worst kernels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import triton
from rich.console import Console
from rich.table import Table as RichTable

from suites.gpu.compile import Row
from suites.gpu.exceptions import EXCEPTIONS, MIN_OCCUPANCY
from suites.harness import Result

PATH = Path(__file__).with_name("table.txt")
TITLE = f"# for Triton {triton.__version__}; `make gpu-check SUITE=--accept` rewrites it"
HEADS = (
    *("launch", "sm", "registers", "warps", "stack", "local", "shared", "occupancy"),
    *("launched", "fit", "wide", "accesses", "barriers"),
)
SHOWN = 5  # of each kind of worst kernels
COUNTED, COUNTED_ON = "encoder_", "/sm_90"  # models whose kernels and texts are counted


@dataclass(frozen=True)
class Table:
    """The rows of distinct launches by name, and the numbers of kernels and texts of models."""

    rows: dict[str, Row]
    counts: dict[str, str]

    @staticmethod
    def of_results(results: Sequence[Result]) -> "Table":
        """Return the table of cases that ran; of equal launches the first one has a row."""
        rows: dict[tuple[str, int], Row] = {}
        counts = {}
        for result in (r for r in results if not r.failed):
            keys, texts = result.data["keys"], result.data["rows"]
            assert isinstance(keys, list) and isinstance(texts, list)
            for key, row in zip(keys, map(Row.parse, texts), strict=True):
                rows.setdefault((key, row.capability), row)
            if result.case.startswith(COUNTED) and result.case.endswith(COUNTED_ON):
                kernels, distinct = result.data["kernels"], result.data["texts"]
                counts[result.case] = f"{kernels} kernels of {distinct} texts"
        return Table({row.name: row for row in rows.values()}, counts)

    @staticmethod
    def read(path: Path = PATH) -> "Table":
        """Return the table that is kept."""
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        counts = dict(line.split(": ") for line in lines if ": " in line)
        texts = [x for x in lines if x and x[0] != "#" and ": " not in x]
        rows = [Row.parse(text) for text in texts if text.split()[0] != HEADS[0]]
        return Table({row.name: row for row in rows}, counts)

    def write(self, path: Path = PATH) -> None:
        """Write the table, in columns."""
        lines = [HEADS, *((r.launch, *map(str, r.values)) for r in self.rows.values())]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        texts = [TITLE, *(f"{case}: {count}" for case, count in self.counts.items())]
        for first, *rest in lines:
            columns = [w.rjust(n) for w, n in zip(rest, widths[1:], strict=True)]
            texts.append(" ".join([first.ljust(widths[0]), *columns]))
        path.write_text("\n".join(texts) + "\n", "utf-8")

    def updated(self, other: "Table", cases: set[str]) -> "Table":
        """Return this table with the rows of `cases` replaced by those of another."""
        rows = {name: row for name, row in self.rows.items() if row.case not in cases}
        counts = {case: n for case, n in self.counts.items() if case not in cases}
        rows, counts = rows | other.rows, counts | other.counts
        return replace(self, rows=dict(sorted(rows.items())), counts=dict(sorted(counts.items())))


def faults(table: Table, stored: Table, partial: bool) -> list[str]:
    """Return what is wrong with the kernels, and how the table differs from the one kept.

    A partial table has rows of launches that it would have elsewhere: only what both have counts.
    """
    found = [fault for row in table.rows.values() for fault in row_faults(row)]
    common = table.rows.keys() & stored.rows.keys()
    found += [
        f"{name}: the table says {stored.rows[name].values[1:]}, now {table.rows[name].values[1:]}"
        for name in sorted(common)
        if table.rows[name] != stored.rows[name]
    ]
    found += [
        f"{case}: the table says {stored.counts.get(case)}, now {count}"
        for case, count in table.counts.items()
        if stored.counts.get(case) != count
    ]
    if not partial:
        found += [f"{name}: not in the table" for name in sorted(table.rows.keys() - common)]
        found += [f"{name}: only in the table" for name in sorted(stored.rows.keys() - common)]
    return found


def row_faults(row: Row) -> list[str]:
    """Return which limits a launch breaks, beyond what the exceptions allow it."""
    allowed = [e for e in EXCEPTIONS if e.covers(row.launch, row.capability)]
    most_stack = max((e.stack for e in allowed), default=0)
    most_local = max((e.local for e in allowed), default=0)
    least = min((e.occupancy for e in allowed), default=MIN_OCCUPANCY)
    found = []
    if row.stack > most_stack:
        found.append(f"{row.name}: {row.stack} bytes of stack, limit {most_stack}")
    if row.local > most_local:
        found.append(f"{row.name}: {row.local} bytes of local memory moved, limit {most_local}")
    if row.occupancy < least:
        found.append(f"{row.name}: occupancy {row.occupancy} %, limit {least} %")
    return found


def show_worst(table: Table, console: Console) -> None:
    """Print the worst launches of each kind, on one screen."""
    shown = RichTable(box=None, header_style="bold", padding=(0, 1, 0, 0))
    for head, justify in SHOWN_COLUMNS.items():
        shown.add_column(head, justify=justify, no_wrap=True)
    for title, rank in RANKS.items():
        shown.add_row(f"[bold]{title}")
        worst = sorted(table.rows.values(), key=rank)[:SHOWN]
        for row in (r for r in worst if rank(r) < BOUNDS.get(title, 0)):
            numbers = (row.capability, row.registers, row.stack, row.local, row.occupancy)
            wide = f"{row.wide}/{row.accesses}"
            shown.add_row(f" {row.launch}", *map(str, numbers), wide, str(row.barriers))
    console.print(shown)


def _narrow(row: Row) -> float:
    return row.wide / max(1, row.accesses) - 1


RANKS: dict[str, Callable[[Row], float]] = {
    "stack": lambda row: -row.stack,
    "local": lambda row: -row.local,
    "occupancy": lambda row: row.occupancy,
    "narrow": lambda row: _narrow(row) * row.accesses,
    "barriers": lambda row: -row.barriers,
}
SHOWN_COLUMNS: dict[str, Literal["left", "right"]] = {
    "worst": "left",
    "sm": "right",
    "regs": "right",
    "stack": "right",
    "local": "right",
    "occ %": "right",
    "wide": "right",
    "barriers": "right",
}
BOUNDS = {"occupancy": 50}
