"""Philox gives the known answers of Random123, and each element its number."""

import numpy as np
import pytest

from tofuse.ops.philox import bernoulli, philox4x32, uniform

KNOWN_ANSWERS = (  # counter, key, words: Random123 kat_vectors, philox4x32 10
    ("00000000 " * 4, "00000000 " * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff " * 4, "ffffffff " * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
)


def words(text):
    return tuple(int(w, 16) for w in text.split())


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_known_answers(counter, key, expected):
    assert tuple(int(w) for w in philox4x32(words(counter), words(key))) == words(expected)


@pytest.mark.parametrize("shape", [(), (1,), (5,), (64,), (65,), (3, 70), (2, 3, 129), (0, 4)])
def test_counter_of_each_element(shape):
    seed, stream = (0x0123456789ABCDEF, 0x1122334455667788), 3
    got = uniform(seed, shape, stream)
    assert got.shape == shape
    assert got.dtype == np.float32
    columns = shape[-1] if shape else 1
    groups = -(-columns // 64)
    for flat, value in enumerate(got.reshape(-1)):
        row, col = divmod(flat, columns)
        counter = (row * groups + col // 64) * 16 + col % 64 // 4
        answer = philox4x32((counter, 0, 0x55667788, stream), (0x89ABCDEF, 0x01234567))
        assert value == (int(answer[col % 4]) >> 8) * 2.0**-24


def test_streams_and_seeds_differ():
    a = uniform((1, 2), (100,), 0)
    assert not np.array_equal(a, uniform((1, 2), (100,), 1))
    assert not np.array_equal(a, uniform((1, 3), (100,), 0))
    assert not np.array_equal(a, uniform((2, 2), (100,), 0))
    assert abs(uniform((1, 2), (100_000,), 0).mean() - 0.5) < 0.01


@pytest.mark.parametrize("shape", [(), (1,), (65,), (3, 70), (2, 3, 129), (0, 4)])
def test_half_word_of_each_element(shape):
    seed, stream, below = (0x0123456789ABCDEF, 0x1122334455667788), 3, 40000
    got = bernoulli(seed, shape, stream, below)
    assert got.shape == shape
    columns = shape[-1] if shape else 1
    groups = -(-columns // 64)
    for flat, value in enumerate(got.reshape(-1)):
        row, col = divmod(flat, columns)
        counter = (row * groups + col // 64) * 8 + col % 64 // 8
        answer = philox4x32((counter, 0, 0x55667788, stream), (0x89ABCDEF, 0x01234567))
        half = int(answer[col % 8 // 2]) >> (16 * (col % 2)) & 0xFFFF
        assert value == (half < below)


@pytest.mark.parametrize("below", [1, 6554, 32768, 65535])
def test_share_of_true(below):
    share = bernoulli((1, 2), (1000, 1000), 0, below).mean()
    expected = below / 65536
    assert abs(share - expected) < 5 * (expected * (1 - expected) / 1e6) ** 0.5
