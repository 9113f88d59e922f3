"""Philox-4x32-10: the random number of each element of a `uniform` or a `bernoulli`.

J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
A number depends only on seed, stream and the element's logical index, so masks are the same for
every schedule, vector width and device, and the backward can regenerate them.
"""

from __future__ import annotations

from typing import Union

import numpy as np
import numpy.typing as npt

Words = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
Word = Union[int, npt.NDArray[np.uint32]]  # noqa: UP007  (evaluated at run time)

PHILOX_BLOCK = 64  # columns; rows begin at whole blocks
PHILOX_COUNTERS = 16  # of a block, where an element takes a word
HALF_COUNTERS = 8  # of a block, where an element takes half a word
HALF_WORDS = 1 << 16  # the values that half a word has
ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)


def uniform(seed: tuple[int, int], shape: tuple[int, ...], stream: int) -> npt.NDArray[np.float32]:
    """Return float32 numbers in [0, 1), multiples of 2**-24.

    Element (row, col), with `row` over the flattened leading dimensions and `col` along the last
    of extent D, is word `col % 4` of the counter `row * ceil(D / 64) * 16 + col // 4`: consecutive
    columns take consecutive words, and each row begins at a block of 64.
    """
    rows, columns, groups = _blocks(shape)
    words = _stream_words(seed, stream, rows * groups * PHILOX_COUNTERS)
    bits = words.reshape(rows, groups * PHILOX_BLOCK)
    chosen = bits[:, :columns] >> np.uint32(8)
    return (chosen.astype(np.float32) * np.float32(2.0**-24)).reshape(shape)


def bernoulli(
    seed: tuple[int, int], shape: tuple[int, ...], stream: int, below: int
) -> npt.NDArray[np.bool_]:
    """Return booleans that are true with the probability `below / 65536`.

    Element (row, col), as in `uniform`, compares half `col % 2`, the lower one first, of word
    `col % 8 // 2` of the counter `row * ceil(D / 64) * 8 + col // 8`.
    """
    rows, columns, groups = _blocks(shape)
    words = _stream_words(seed, stream, rows * groups * HALF_COUNTERS)
    halves = np.stack([words & np.uint32(HALF_WORDS - 1), words >> np.uint32(16)], axis=-1)
    chosen = halves.reshape(rows, groups * PHILOX_BLOCK)[:, :columns]
    return (chosen < below).reshape(shape)


def _blocks(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return rows, columns and blocks of a row."""
    columns = shape[-1] if shape else 1
    return int(np.prod(shape[:-1], dtype=np.int64)), columns, -(-columns // PHILOX_BLOCK)


def _stream_words(seed: tuple[int, int], stream: int, counters: int) -> npt.NDArray[np.uint32]:
    """Return the four words of each counter from 0 on."""
    counter = np.arange(counters, dtype=np.uint64)
    words = philox4x32(
        (_low(counter), _high(counter), seed[1] & 0xFFFFFFFF, stream & 0xFFFFFFFF),
        (seed[0] & 0xFFFFFFFF, (seed[0] >> 32) & 0xFFFFFFFF),
    )
    return np.stack(words, axis=-1)


def philox4x32(counter: tuple[Word, Word, Word, Word], key: tuple[int, int]) -> Words:
    """Apply Philox to four 32-bit counter words (ints or arrays) and two key words."""
    c0, c1, c2, c3 = np.broadcast_arrays(*(np.asarray(c, np.uint32) for c in counter))
    k0, k1 = key
    for _ in range(ROUNDS):
        a = c0.astype(np.uint64) * np.uint64(MULTIPLIERS[0])
        b = c2.astype(np.uint64) * np.uint64(MULTIPLIERS[1])
        c0, c2 = _high(b) ^ c1 ^ np.uint32(k0), _high(a) ^ c3 ^ np.uint32(k1)
        c1, c3 = _low(b), _low(a)
        k0, k1 = (k0 + WEYL[0]) & 0xFFFFFFFF, (k1 + WEYL[1]) & 0xFFFFFFFF
    return c0, c1, c2, c3


def _low(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
    return x.astype(np.uint32)


def _high(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
    return (x >> np.uint64(32)).astype(np.uint32)
