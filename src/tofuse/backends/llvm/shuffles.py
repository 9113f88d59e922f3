"""Vectors put together from the lanes of others."""

from __future__ import annotations

from collections.abc import Sequence

from tofuse.backends.llvm.ir_text import Function


def transpose(f: Function, parts: Sequence[str], kind: str) -> list[str]:
    """As many vectors as lanes, rows for columns: swap ever larger blocks off the diagonal."""
    turned, lanes = list(parts), len(parts)
    step = 1
    while step < lanes:
        for i in (i for i in range(lanes) if not i & step):
            pair = f"{kind} {turned[i]}, {kind} {turned[i + step]}"
            first = [k if not k & step else lanes + k - step for k in range(lanes)]
            second = [k + step if not k & step else lanes + k for k in range(lanes)]
            turned[i], turned[i + step] = (
                f.let(f"shufflevector {pair}, <{lanes} x i32> <{_numbers(m)}>")
                for m in (first, second)
            )
        step *= 2
    return turned


def pick(
    f: Function, parts: Sequence[str], places: Sequence[int], kind: str, lanes: int
) -> list[str]:
    """Vectors of the elements at those places, counted over all parts."""
    picked = []
    for first in range(0, len(places), lanes):
        found = "poison"
        for number, part in enumerate(parts):
            mask = list(range(lanes))  # what is there stays there
            for lane, place in enumerate(places[first : first + lanes]):
                if place // lanes == number:
                    mask[lane] = lanes + place % lanes
            if max(mask) >= lanes:
                pair = f"{kind} {found}, {kind} {part}"
                found = f.let(f"shufflevector {pair}, <{lanes} x i32> <{_numbers(mask)}>")
        picked.append(found)
    return picked


def part(f: Function, vectors: Sequence[str], kind: str, lanes: int) -> list[str]:
    """Rows of as many elements as there are vectors: a vector of each place in them.

    By one prime factor after the other: three shuffles a vector for rows of 8 elements, not 7.
    """
    count = len(vectors)
    step = _factor(count)
    found = [""] * count
    for place in range(step):
        wanted = [step * lane + place for lane in range(lanes)]
        chunks = [vectors[k : k + step] for k in range(0, count, step)]
        picked = [v for chunk in chunks for v in pick(f, chunk, wanted, kind, lanes)]
        found[place::step] = picked if step == count else part(f, picked, kind, lanes)
    return found


def join(f: Function, places: Sequence[str], kind: str, lanes: int) -> list[str]:
    """What `part` takes, of what it gives."""
    count = len(places)
    step = _factor(count)
    columns = [list(places[k::step]) for k in range(step)]
    if step < count:
        columns = [join(f, column, kind, lanes) for column in columns]
    order = [n % step * lanes + n // step for n in range(step * lanes)]
    rows = zip(*columns, strict=True)
    return [v for row in rows for v in pick(f, row, order, kind, lanes)]


def _factor(count: int) -> int:
    """The least prime factor."""
    return next(k for k in range(2, count + 1) if count % k == 0)


def _numbers(mask: Sequence[int]) -> str:
    return ", ".join(f"i32 {k}" for k in mask)
