"""Shuffles: transpose, interleave and deinterleave vectors."""

from __future__ import annotations

from collections.abc import Sequence

from tofuse.backends.cpu.llvm.ir_text import FunctionBuilder


def transpose(f: FunctionBuilder, vectors: Sequence[str], ty: str) -> list[str]:
    """Transpose `lanes` vectors of `lanes` lanes: swap ever larger off-diagonal blocks."""
    rows, lanes = list(vectors), len(vectors)
    step = 1
    while step < lanes:
        for i in (i for i in range(lanes) if not i & step):
            pair = rows[i], rows[i + step]
            first = [k if not k & step else lanes + k - step for k in range(lanes)]
            second = [k + step if not k & step else lanes + k for k in range(lanes)]
            rows[i], rows[i + step] = (f.shuffle(ty, *pair, m) for m in (first, second))
        step *= 2
    return rows


def select_elements(
    f: FunctionBuilder, vectors: Sequence[str], positions: Sequence[int], ty: str, lanes: int
) -> list[str]:
    """Return vectors of the elements at `positions`, counted over all `vectors`."""
    selected = []
    for first in range(0, len(positions), lanes):
        result = "poison"
        for k, vector in enumerate(vectors):
            mask = list(range(lanes))  # keep the elements selected so far
            for lane, position in enumerate(positions[first : first + lanes]):
                if position // lanes == k:
                    mask[lane] = lanes + position % lanes
            if max(mask) >= lanes:
                result = f.shuffle(ty, result, vector, mask)
        selected.append(result)
    return selected


def deinterleave(f: FunctionBuilder, vectors: Sequence[str], ty: str, lanes: int) -> list[str]:
    """Split rows of as many elements as there are vectors into one vector per position in a row.

    This goes by prime factors: rows of 8 elements take three shuffles per vector, not 7.
    """
    count = len(vectors)
    step = _smallest_prime_factor(count)
    result = [""] * count
    for position in range(step):
        positions = [step * lane + position for lane in range(lanes)]
        groups = [vectors[k : k + step] for k in range(0, count, step)]
        selected = [v for group in groups for v in select_elements(f, group, positions, ty, lanes)]
        result[position::step] = selected if step == count else deinterleave(f, selected, ty, lanes)
    return result


def interleave(f: FunctionBuilder, vectors: Sequence[str], ty: str, lanes: int) -> list[str]:
    """Merge one vector per position into rows: the inverse of `deinterleave`."""
    count = len(vectors)
    step = _smallest_prime_factor(count)
    columns = [list(vectors[k::step]) for k in range(step)]
    if step < count:
        columns = [interleave(f, column, ty, lanes) for column in columns]
    order = [n % step * lanes + n // step for n in range(step * lanes)]
    rows = zip(*columns, strict=True)
    return [v for row in rows for v in select_elements(f, row, order, ty, lanes)]


def _smallest_prime_factor(count: int) -> int:
    """Return the smallest prime factor."""
    return next(k for k in range(2, count + 1) if count % k == 0)
