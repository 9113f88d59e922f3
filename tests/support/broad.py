"""Of tests that are made of many combinations, the part that is run when not all are asked for."""

import random
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TypeVar

import pytest

MARK = "broad"


T = TypeVar("T")


def drawn(cases: Iterable[T], name: str, share: int) -> list[T]:
    """An n-th of the cases, in their order; another name draws others."""
    known = list(cases)
    places = random.Random(name).sample(range(len(known)), -(-len(known) // share))
    return [known[k] for k in sorted(places)]


def part_of(items: Sequence[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The tests to run and those to leave out, each in the order given.

    Of a test marked `broad(n)` an n-th of its cases runs: drawn by chance, always the same ones,
    and at least so many that every value of every parameter but `seed` has its turn.
    """
    chosen: set[pytest.Item] = set()
    for _, cases in groupby(items, key=lambda item: item.nodeid.partition("[")[0]):
        chosen |= _choose(list(cases))
    return [i for i in items if i in chosen], [i for i in items if i not in chosen]


def _choose(cases: Sequence[pytest.Item]) -> set[pytest.Item]:
    mark = cases[0].get_closest_marker(MARK)
    if mark is None:
        return set(cases)
    (share,) = mark.args
    drawn = random.Random(cases[0].nodeid.partition("[")[0]).sample(cases, len(cases))
    seen: set[tuple[str, int]] = set()
    new: list[pytest.Item] = []
    known: list[pytest.Item] = []
    for case in drawn:
        values = _values(case)
        (known if values <= seen else new).append(case)
        seen |= values
    return {*new, *known[: max(0, -(-len(cases) // share) - len(new))]}


def _values(case: pytest.Item) -> set[tuple[str, int]]:
    """Each parameter with the identity of its value, for not all have another name."""
    assert isinstance(case, pytest.Function)
    return {(name, id(value)) for name, value in case.callspec.params.items() if name != "seed"}
