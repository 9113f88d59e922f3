"""Writes docs/models.md: what holds for the models, then one row for each."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from suites.harness import ROOT, Result

DOCUMENT = ROOT / "docs" / "models.md"
PARTS = ("outputs", "gradients", "buffers", "generation", "optimiser")
GOAL = 1.3  # a first step takes at most this multiple of AOTAutograd's
# A library does these faster than a kernel of ours, whatever surrounds them.
LIBRARY = ("mm", "addmm", "bmm", "baddbmm", "convolution", "attention", "embedding")


def write(
    cases: Sequence[str],
    checks: Mapping[str, Result],
    times: Mapping[str, Result],
    path: Path = DOCUMENT,
) -> None:
    """Write the document from the latest results of both modes."""
    path.write_text(document_text(cases, checks, times), encoding="utf-8")


def document_text(
    cases: Sequence[str], checks: Mapping[str, Result], times: Mapping[str, Result]
) -> str:
    """Return the document: the conclusion, the table, what PyTorch runs, the graph breaks."""
    checked = [checks[case] for case in cases if case in checks]
    timed = [times[case] for case in cases if case in times and not times[case].failed]
    header = ["model", "ok", "error ratio", "breaks", "fallbacks", "first step, s", "ratio"]
    rows = [_row(case, checks.get(case), times.get(case)) for case in cases]
    sections = [
        "# Models\n",
        _conclusion(len(cases), checked, timed),
        ABOUT,
        _table(header, rows),
        *_failures(checked),
        *_fallbacks(checked),
        *_breaks(checked),
    ]
    return "\n".join(sections)


def _conclusion(total: int, checked: Sequence[Result], timed: Sequence[Result]) -> str:
    good = sum(not r.failed for r in checked)
    breaking = sum(bool(_texts(r, "breaks")) for r in checked)
    lines = [
        f"{good} of {total} small models with random weights pass: their results, gradients, "
        "buffers, optimiser step and generated logits are at most twice as far from float64 as "
        f"eager's float32. {len(checked) - good} fail, {total - len(checked)} have not run. "
        f"{breaking} have graph breaks."
    ]
    if timed:
        ratios = [_number(r, "ratio") for r in timed]
        within = sum(ratio <= GOAL for ratio in ratios)
        lines.append(
            f"A first training step takes {statistics.median(ratios):.2f} times that of "
            f"AOTAutograd alone in the median; {within} of {len(timed)} are within {GOAL}."
        )
    return " ".join(lines) + "\n"


def _row(case: str, check: Result | None, time: Result | None) -> list[str]:
    cells = [case]
    if check is None:
        cells += ["", "", "", ""]
    else:
        ratios = [_number(check, part) for part in PARTS if part in check.data]
        cells += [
            "no" if check.failed else "yes",
            f"{max(ratios):.2f}" if ratios else "",
            str(len(_texts(check, "breaks"))),
            str(sum(count for _, count in _calls(check))),
        ]
    if time is None or time.failed:
        return [*cells, "", ""]
    ours, theirs = _number(time, "tofuse"), _number(time, "aot_eager")
    return [*cells, f"{ours:.1f} / {theirs:.1f}", f"{_number(time, 'ratio'):.2f}"]


def _failures(checked: Iterable[Result]) -> Iterable[str]:
    rows = [[r.case, r.detail] for r in checked if r.failed]
    if rows:
        yield "## What fails\n"
        yield _table(["model", "cause"], rows)


def _fallbacks(checked: Sequence[Result]) -> Iterable[str]:
    calls: Counter[str] = Counter()
    models: Counter[str] = Counter()
    for result in checked:
        for call, count in _calls(result):
            calls[call] += count
            models[call] += 1
    rows = [[*call.split(": ", 1), str(models[call]), str(n)] for call, n in calls.most_common()]
    if rows:
        yield "## What PyTorch runs\n"
        yield "Without matrix products, convolutions, attention and embeddings.\n"
        yield _table(["operator", "verdict", "models", "calls"], rows)


def _breaks(checked: Sequence[Result]) -> Iterable[str]:
    models: dict[str, list[str]] = {}
    for result in checked:
        for text in _texts(result, "breaks"):
            models.setdefault(text, []).append(result.case.split("/")[1])
    rows = [[text, ", ".join(names)] for text, names in models.items()]
    if rows:
        yield "## Graph breaks\n"
        yield _table(["break", "models"], rows)


def _calls(result: Result) -> list[tuple[str, int]]:
    """Return the fallbacks and how many calls each is, without what libraries do best."""
    found = []
    for text in _texts(result, "fallbacks"):
        call, _, count = text.rpartition(" x")
        if not any(word in call.split(":")[0] for word in LIBRARY):
            found.append((call, int(count)))
    return found


def _texts(result: Result, key: str) -> list[str]:
    value = result.data.get(key, [])
    assert isinstance(value, list)
    return value


def _number(result: Result, key: str) -> float:
    value = result.data[key]
    assert isinstance(value, int | float)
    return value


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [header, ["---"] * len(header), *rows]
    lines = ["| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in cells]
    return "\n".join(lines) + "\n"


ABOUT = """\
`make models` writes this page; `make models SUITE=--time JOBS=1` measures the first steps. The
error ratio is our error over eager's, both root mean squares over one tensor; the table has a
model's worst tensor. Where eager's error is below the model's typical relative error, that one
takes its place. A gradient that is zero in exact arithmetic may have 64 units in the last place of
the largest. A model whose ratio exceeds 2 runs with 14 other sets of weights, and the median
counts: in networks with ReLUs or batch norms of few values, one other rounding of the input changes
eager's own error up to 1000-fold. Fallbacks are calls that PyTorch runs; matrix products,
convolutions, attention and embeddings are not counted. A first step is forward and backward in CPU
seconds on one thread, compiled by tofuse / by `aot_eager`, with empty caches.
"""
