"""The table of distributed training: its cases, and docs/distributed.md.

A case is a row with a number of ranks: `tensor parallel@4`. `make distributed` runs them all.
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from suites.distributed.measure import CONTENDERS, measure_row
from suites.distributed.predictions import measured_and_predicted, on_paper
from suites.distributed.ranks import run_ranks
from suites.distributed.resume import SAVED, kill_and_resume
from suites.distributed.rows import ROWS
from suites.distributed.simulate import Prediction
from suites.harness import ROOT, Result

Data = dict[str, str | int | float | list[str]]
SUITE = "distributed"
RANKS = (2, 4)
RESUMED, OVERLAP, PAPER = "killed and resumed", "overlap", "on paper"
PAPER_RANKS = (2, 4, 8)
TEXT = ROOT / "suites" / "distributed" / "text.md"  # around the tables
PAGE = ROOT / "docs" / "distributed.md"


def list_cases() -> list[str]:
    rows = [f"{row}@{ranks}" for ranks in RANKS for row in ROWS]
    overlaps = [f"{OVERLAP}@{ranks}" for ranks in RANKS]
    return [*rows, f"{RESUMED}@4", *overlaps, *(f"{PAPER}@{ranks}" for ranks in PAPER_RANKS)]


def run_case(case: str) -> Result:
    """Compare a row with eager, and time it."""
    row, _, ranks = case.rpartition("@")
    if row == RESUMED:
        return _resume(case, int(ranks))
    if row == PAPER:
        found = on_paper(int(ranks))
        return Result(case, "ok", "", {name: list(_numbers(p)) for name, p in found.items()})
    data, error = _on_ranks(row, int(ranks))
    if error:
        return Result(case, "failed", error.strip().splitlines()[-1])
    if row == OVERLAP:
        return Result(case, "ok", "", data)
    if data["difference"] > data["tolerance"]:
        return Result(case, "failed", f"differs by {data['difference']:.1e}", data)
    if data["notes"]:
        return Result(case, "failed", data["notes"][0], data)
    return Result(case, "ok", "", data)


def _on_ranks(row: str, ranks: int) -> tuple[dict[str, Any], str]:
    """Return what rank 0 measured, and an error."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "data.json")
        errors = run_ranks([MeasureRow(row, str(path))], ranks)
        return json.loads("{}" if errors else path.read_text()), next(iter(errors.values()), "")


def _numbers(p: Prediction) -> tuple[str, ...]:
    """Return µs: of kernels, of collectives, and of waiting for these."""
    return tuple(f"{us:.0f}" for us in (p.compute_us, p.communication_us, p.exposed_us))


class MeasureRow:
    """A scenario of all ranks, of which rank 0 writes what was measured."""

    def __init__(self, row: str, path: str) -> None:
        self.__name__ = "measure_row"
        self.row, self.path = row, path

    def __call__(self, rank: int, ranks: int) -> None:
        is_overlap = self.row == OVERLAP
        data = measured_and_predicted(ranks) if is_overlap else measure_row(self.row, rank, ranks)
        if rank == 0:
            Path(self.path).write_text(json.dumps(data))


def _resume(case: str, ranks: int) -> Result:
    found = kill_and_resume(ranks)
    data: Data = {
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
    text = text.replace("<!-- overlap -->", _overlap_table(results))
    text = text.replace("<!-- paper -->", _paper_table(results))
    resumed = results.get(f"{RESUMED}@4")
    if resumed is not None and not resumed.failed:
        text = text.replace("<!-- resumed -->", _resumed_sentence(resumed))
    return text


def _overlap_table(results: dict[str, Result]) -> str:
    """Return the measured and the predicted time of the backward, in ms."""
    lines = ["| ranks | pass | measured, ms | predicted | each collective waited for at once |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    for ranks, phase, times in _times(results, OVERLAP, RANKS):
        lines.append(f"| {ranks} | {phase} | {' | '.join(f'{ms:.1f}' for ms in times)} |")
    return "\n".join(lines)


def _paper_table(results: dict[str, Result]) -> str:
    """Return the predictions for accelerators, in ms."""
    lines = ["| ranks | network | kernels, ms | collectives, ms | waited for, ms | hidden |"]
    lines += ["| --- | --- | --- | --- | --- | --- |"]
    for ranks, network, times in _times(results, PAPER, PAPER_RANKS):
        _, communication, exposed = times
        cells = " | ".join(f"{ms:.2f}" for ms in times)
        lines.append(f"| {ranks} | {network} | {cells} | {1 - exposed / communication:.0%} |")
    return "\n".join(lines)


def _times(
    results: dict[str, Result], kind: str, counts: tuple[int, ...]
) -> Iterator[tuple[int, str, list[float]]]:
    """Yield the number of ranks, the name, and the ms of each measurement of a kind."""
    for ranks in counts:
        result = results.get(f"{kind}@{ranks}")
        for name, times in result.data.items() if result and not result.failed else ():
            assert isinstance(times, list)
            yield ranks, name, [float(us) / 1e3 for us in times]


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
