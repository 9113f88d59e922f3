"""Select a sample of the cases of tests with many parameter combinations."""

import random
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TypeVar

import pytest

MARK = "broad"


T = TypeVar("T")


def sample_cases(cases: Iterable[T], name: str, divisor: int) -> list[T]:
    """Return one in `divisor` cases, in order. `name` seeds the choice."""
    candidates = list(cases)
    count = -(-len(candidates) // divisor)
    numbers = random.Random(name).sample(range(len(candidates)), count)
    return [candidates[k] for k in sorted(numbers)]


def select_tests(items: Sequence[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests to run and those to skip, each in the given order.

    A test marked `broad(n)` runs one in n of its cases. The choice is random but deterministic,
    and includes every value of every parameter except `seed`.
    """
    chosen: set[pytest.Item] = set()
    for _, cases in groupby(items, key=lambda item: item.nodeid.partition("[")[0]):
        chosen |= _choose(list(cases))
    return [i for i in items if i in chosen], [i for i in items if i not in chosen]


def _choose(cases: Sequence[pytest.Item]) -> set[pytest.Item]:
    mark = cases[0].get_closest_marker(MARK)
    if mark is None:
        return set(cases)
    (divisor,) = mark.args
    shuffled = random.Random(cases[0].nodeid.partition("[")[0]).sample(cases, len(cases))
    covered: set[tuple[str, int]] = set()
    covering: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for case in shuffled:
        values = _values(case)
        (others if values <= covered else covering).append(case)
        covered |= values
    return {*covering, *others[: max(0, -(-len(cases) // divisor) - len(covering))]}


def _values(case: pytest.Item) -> set[tuple[str, int]]:
    """Return each parameter with the identity of its value; the values' ids may not be unique."""
    assert isinstance(case, pytest.Function)
    return {(name, id(value)) for name, value in case.callspec.params.items() if name != "seed"}
