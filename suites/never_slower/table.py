"""The cases: a program, forward or with its backward, on one thread or two; and the worst ones."""

import dataclasses

from suites.harness import Result
from suites.never_slower.measure import measure_program
from suites.never_slower.networks import NETWORKS
from suites.never_slower.operators import OPERATORS
from suites.never_slower.program import Program
from suites.never_slower.sequences import SEQUENCES

SUITE = "never-slower"
PROGRAMS: dict[str, Program] = {**OPERATORS, **SEQUENCES, **NETWORKS}
WORST = 10  # cases that are printed
LIMIT, PEAK_LIMIT = 0.97, 1.0  # eager's time over ours, and eager's peak over ours, at least
KINDS = ("forward", "training")
THREADS = (1, 2)


def list_cases() -> list[str]:
    return [f"{name} | {kind} | {n}" for name in PROGRAMS for kind in KINDS for n in THREADS]


def run_case(case: str) -> Result:
    """Measure a case; it fails if it is slower than eager, or holds more memory."""
    name, kind, threads = case.split(" | ")
    found = measure_program(PROGRAMS[name], kind == "training", int(threads))
    data = {**dataclasses.asdict(found), "peak_ratio": found.peak_ratio}
    if found.ratio < LIMIT:
        return Result(case, "slower", f"{found.ratio:.2f}", data)
    if found.peak_ratio < PEAK_LIMIT:
        return Result(case, "larger", f"{found.peak_ratio:.2f}", data)
    return Result(case, "ok", "", data)


def worst_cases(results: dict[str, Result]) -> str:
    """Return the worst ratios of time, and of peak memory, as text."""
    measured = {case: r.data for case, r in results.items() if not r.failed}
    lines: list[str] = []
    for key, title, places in (("ratio", "time", 3), ("peak_ratio", "peak memory", 3)):
        lines += ["", f"eager's {title} over ours", ""]
        ratios = sorted((float(str(data[key])), case) for case, data in measured.items())
        lines += [f"{ratio:6.{places}f}  {case} {_thread(case)}" for ratio, case in ratios[:WORST]]
        lines += [f"{_median(ratios):6.3f}  the median of {len(ratios)}"] if ratios else []
    return "\n".join(lines[1:])


def _thread(case: str) -> str:
    return "thread" if case.endswith(" 1") else "threads"


def _median(ratios: list[tuple[float, str]]) -> float:
    return ratios[len(ratios) // 2][0]
