"""The cases: a model each, all contenders in new processes; and docs/start.md."""

import json
import tempfile
from pathlib import Path

from suites.harness import ROOT, Result, run_process
from suites.start.models import MODELS
from suites.start.process import BACKGROUND, EXPORT, STEPS

SUITE = "start"
PAGE = ROOT / "docs" / "start.md"
TEXT = ROOT / "suites" / "start" / "text.md"  # above the tables
# Name in the table, contender, and whether its cache is that of the contender before.
CONTENDERS = (
    ("eager", "eager", False),
    ("Inductor, cold", "inductor", False),
    ("Inductor, warm", "inductor", True),
    ("tofuse, cold", "tofuse", False),
    ("tofuse, warm", "tofuse", True),
    ("tofuse, background", BACKGROUND, False),
    ("tofuse, file", "file", False),
)


def list_cases() -> list[str]:
    return list(MODELS)


def run_case(case: str) -> Result:
    """Return the seconds of each contender's steps, as texts."""
    data: dict[str, str | int | float | list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "model.tofuse"))
        _run(case, EXPORT, path, Path(folder, "export"))
        for name, contender, warm in CONTENDERS:
            cache = Path(folder, contender)
            if warm and not cache.exists():
                raise ValueError(f"{name} has no cache")
            data[name] = [
                f"{seconds:.5f}" for seconds in json.loads(_run(case, contender, path, cache))
            ]
    return Result(case, "ok", "", data)


def _run(case: str, contender: str, path: str, cache: Path) -> str:
    return run_process("suites.start.process", (case, contender, path), cache)


def page(results: dict[str, Result]) -> str:
    """Return docs/start.md."""
    tables = [
        f"## {case}\n\n{table(results[case])}"
        for case in MODELS
        if case in results and not results[case].failed
    ]
    return "\n\n".join([TEXT.read_text().strip(), *tables]) + "\n"


def table(result: Result) -> str:
    """Return the first and the tenth step, the slowest of a hundred (p99), and the median."""
    lines = ["| | first step, s | tenth, ms | p99 after the first, ms | median, ms |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    for name, _, _ in CONTENDERS:
        seconds = result.data.get(name)
        if not isinstance(seconds, list):
            continue
        lines.append(_row(name, seconds[:STEPS]))
        if seconds[STEPS:]:
            lines.append(_row(f"{name}, after `wait`", seconds[STEPS:]))
    return "\n".join(lines)


def _row(name: str, seconds: list[str]) -> str:
    first, *others = map(float, seconds)
    ordered = sorted(others)
    p99, median = ordered[-1 - len(ordered) // 100], ordered[len(ordered) // 2]
    cells = (f"{1e3 * s:.1f}" for s in (others[8], p99, median))
    return f"| {name} | {first:.2f} | {' | '.join(cells)} |"
