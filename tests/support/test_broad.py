"""A test runs a sample of its cases, with as many values as it can have; `--full` runs all."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MARKED = "tests/backends/cpu/schedule/test_column_sums.py"
UNMARKED = "tests/behavior/test_random_aliases.py::test_random_program"


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


def test_a_sample_has_as_many_values_as_it_can():
    full, sample = collected("--full", MARKED, UNMARKED), collected(MARKED, UNMARKED)
    assert set(sample) < set(full)
    of_one = [case for case in full if case.startswith(UNMARKED.partition("::")[2])]
    assert len(of_one) / 20 < len(set(of_one) & set(sample)) < len(of_one) / 12
    parametrized = {case.partition("[")[0] for case in full if "[" in case}
    for test in parametrized - {UNMARKED.partition("::")[2]}:
        chosen = [case for case in sample if case.startswith(f"{test}[")]
        assert chosen
        positions = [len({v for _, k, v in values(chosen) if k == n}) for n in (0, 1)]
        assert max(positions) >= min(len(chosen), 2)
