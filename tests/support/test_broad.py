"""A test runs a sample of its cases, with every value of several parameters; `--full` runs all."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BROAD = "tests/backends/llvm/test_unroll_rows.py"
UNMARKED = "tests/regressions/test_numerics.py::test_integer_ops_match_eager"


def collected(*options: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if "::" in line]
    return [line.partition("::")[2] for line in lines]


def values(cases: list[str]) -> set[tuple[str, int, str]]:
    names = [(name, rest.rstrip("]").split("-")) for name, _, rest in map(split, cases)]
    return {(name, k, value) for name, parts in names for k, value in enumerate(parts)}


def split(case: str) -> tuple[str, str, str]:
    return case.partition("[")


def test_a_sample_covers_every_parameter_value():
    full, sample = collected("--full", BROAD), collected(BROAD)
    assert len(sample) < len(full) and set(sample) < set(full)
    assert values(sample) == values(full)


def test_a_third_of_many_cases_runs_without_a_mark():
    full, sample = collected("--full", UNMARKED), collected(UNMARKED)
    assert set(sample) < set(full)
    assert len(full) / 4 < len(sample) < len(full) / 2
