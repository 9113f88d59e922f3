"""Vectors put together from the lanes of others."""

from __future__ import annotations

from collections.abc import Sequence

from tofuse.backends.llvm.text import Function


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


def _numbers(mask: Sequence[int]) -> str:
    return ", ".join(f"i32 {k}" for k in mask)
