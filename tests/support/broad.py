"""Select a sample of the cases of tests with many parameter combinations."""

import random
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TypeVar

import pytest

MARK = "broad"
DIVISOR = 16
# Folders whose tests run all cases: they compile no programs, or have an operator for each case.
# So do tests in no folder.
WHOLE = {"analysis", "frontends", "ir", "ops", "passes", "plan", "report", "schedule", "support"}
# Folders and files of long tests, none of which `--brief` runs.
LONG = (
    *("behavior/", "benchmarks/", "integrations/", "models/", "regressions/", "suites/"),
    "analysis/test_fixed_bits.py",
    "backends/cuda/runtime/test_gpu_driver.py",
    "backends/cuda/test_backend.py",
    "backends/cuda/triton/test_emit.py",
    "backends/cuda/triton/test_row_parts.py",
    "capture/lower/test_number_ranges.py",
    "capture/pre_autograd/test_product_gradients.py",
    "runtime/test_program_file.py",
    "support/test_broad.py",
    "test_guest.py",
    "torch_internals/test_private_names.py",
)


T = TypeVar("T")


def sample_cases(cases: Iterable[T], name: str, divisor: int) -> list[T]:
    """Return one in `divisor` cases, in order. `name` seeds the choice."""
    candidates = list(cases)
    count = -(-len(candidates) // divisor)
    numbers = random.Random(name).sample(range(len(candidates)), count)
    return [candidates[k] for k in sorted(numbers)]


def select_brief(items: Sequence[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return one test of each file, and the others; none of `LONG`."""
    sample, _ = select_tests(items)
    files = groupby(sample, key=lambda item: item.nodeid.partition("::")[0])
    chosen = {next(t) for file, t in files if not file.removeprefix("tests/").startswith(LONG)}
    return [i for i in items if i in chosen], [i for i in items if i not in chosen]


def select_tests(items: Sequence[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests to run and those to skip, each in the given order.

    A test marked `broad(n)` runs one in n of its cases; without a mark, one in `DIVISOR`, unless
    its folder is one of `WHOLE`. The choice is random but deterministic. The cases have as many of
    the parameters' values as they can, except of `seed`.
    """
    chosen: set[pytest.Item] = set()
    for _, cases in groupby(items, key=lambda item: item.nodeid.partition("[")[0]):
        chosen |= _choose(list(cases))
    return [i for i in items if i in chosen], [i for i in items if i not in chosen]


def _choose(cases: Sequence[pytest.Item]) -> set[pytest.Item]:
    divisor = _divisor(cases)
    if divisor == 1 or len(cases) == 1:
        return set(cases)
    shuffled = random.Random(cases[0].nodeid.partition("[")[0]).sample(cases, len(cases))
    chosen: list[pytest.Item] = []
    covered: set[tuple[str, int]] = set()
    while len(chosen) < -(-len(cases) // divisor):
        rest = [case for case in shuffled if case not in chosen]
        chosen.append(max(rest, key=lambda case: len(_values(case) - covered)))
        covered |= _values(chosen[-1])
    return set(chosen)


def _divisor(cases: Sequence[pytest.Item]) -> int:
    """Return n, if a test runs one in n of its cases."""
    mark = cases[0].get_closest_marker(MARK)
    if mark is not None:
        (divisor,) = mark.args
        assert isinstance(divisor, int)
        return divisor
    folder = _folder(cases[0].nodeid.partition("::")[0])
    return 1 if folder is None or folder in WHOLE else DIVISOR


def _folder(file: str) -> str | None:
    """Return the folder of tests that a file is in; None for a file in no folder."""
    folder, _, below = file.removeprefix("tests/").partition("/")
    return folder if below else None


def _values(case: pytest.Item) -> set[tuple[str, int]]:
    """Return each parameter with the identity of its value; the values' ids may not be unique."""
    assert isinstance(case, pytest.Function)
    return {(name, id(value)) for name, value in case.callspec.params.items() if name != "seed"}
