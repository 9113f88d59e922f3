"""The table of distributed training: its cases, and docs/distributed.md.

A case is a row with a number of ranks: `tensor parallel@4`. `make distributed` runs them all.
"""

import json
import tempfile
from pathlib import Path

from suites.distributed.measure import CONTENDERS, measure_row
from suites.distributed.ranks import run_ranks
from suites.distributed.resume import SAVED, kill_and_resume
from suites.distributed.rows import ROWS
from suites.harness import ROOT, Result

SUITE = "distributed"
RANKS = (2, 4)
RESUMED = "killed and resumed"
TEXT = ROOT / "suites" / "distributed" / "text.md"  # around the tables
PAGE = ROOT / "docs" / "distributed.md"


def list_cases() -> list[str]:
    return [f"{row}@{ranks}" for ranks in RANKS for row in ROWS] + [f"{RESUMED}@4"]


def run_case(case: str) -> Result:
    """Compare a row with eager, and time it."""
    row, _, ranks = case.rpartition("@")
    if row == RESUMED:
        return _resume(case, int(ranks))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "data.json")
        errors = run_ranks([MeasureRow(row, str(path))], int(ranks))
        if errors:
            return Result(case, "failed", next(iter(errors.values())).strip().splitlines()[-1])
        data = json.loads(path.read_text())
    if data["difference"] > data["tolerance"]:
        return Result(case, "failed", f"differs by {data['difference']:.1e}", data)
    if data["notes"]:
        return Result(case, "failed", data["notes"][0], data)
    return Result(case, "ok", "", data)


class MeasureRow:
    """A scenario of all ranks, of which rank 0 writes what was measured."""

    def __init__(self, row: str, path: str) -> None:
        self.__name__ = "measure_row"
        self.row, self.path = row, path

    def __call__(self, rank: int, ranks: int) -> None:
        data = measure_row(self.row, rank, ranks)
        if rank == 0:
            Path(self.path).write_text(json.dumps(data))


def _resume(case: str, ranks: int) -> Result:
    found = kill_and_resume(ranks)
    data: dict[str, str | int | float | list[str]] = {
        "first_s": found.first_s,
        "resumed_first_s": found.resumed_first_s,
    }
    after = found.whole[SAVED:]
    worst = max(abs(a - b) / abs(b) for a, b in zip(found.resumed, after, strict=True))
    data["difference"] = worst
    return Result(case, "ok" if worst <= 1e-6 else "failed", f"losses differ by {worst:.1e}", data)


def page(results: dict[str, Result]) -> str:
    """Return docs/distributed.md."""
    text = TEXT.read_text()
    for ranks in RANKS:
        text = text.replace(f"<!-- table {ranks} -->", _table(results, ranks))
    resumed = results.get(f"{RESUMED}@4")
    if resumed is not None and not resumed.failed:
        text = text.replace("<!-- resumed -->", _resumed_sentence(resumed))
    return text


def _resumed_sentence(result: Result) -> str:
    first, resumed = (float(str(result.data[k])) for k in ("first_s", "resumed_first_s"))
    return (
        f"{result.detail.capitalize()} of their value. The first step took {first:.1f} s with an "
        f"empty cache, and {resumed:.1f} s in the processes that resumed."
    )


def _table(results: dict[str, Result], ranks: int) -> str:
    lines = [
        "| training | kernels | difference | eager, ms | over eager | over Inductor "
        "| peak: eager, tofuse, Inductor, MB | sent a step, MB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    found = [(row, results.get(f"{row}@{ranks}")) for row in ROWS]
    return "\n".join([*lines, *(_row(row, result) for row, result in found if result)])


def _row(row: str, result: Result) -> str:
    if result.failed:
        return f"| {row} | {result.status}: {result.detail} | | | | | | |"
    data = {name: float(x) for name, x in result.data.items() if isinstance(x, (int, float))}
    eager, ours, inductor = (data.get(f"{c}_ms") for c in CONTENDERS)
    assert eager and ours
    peaks = ", ".join(
        f"{data[f'{c}_peak'] / 1e6:.2f}" if f"{c}_peak" in data else "-" for c in CONTENDERS
    )
    over = f"{inductor / ours:.2f}" if inductor else f"({result.data['inductor_error']})"
    sent = " / ".join(f"{data[f'{c}_sent'] / 1e6:.2f}" for c in CONTENDERS[:2])
    return (
        f"| {row} | {data['kernels']:.0f} | {data['difference']:.0e} | {eager:.1f} "
        f"| {eager / ours:.2f} | {over} | {peaks} | {sent} |"
    )
