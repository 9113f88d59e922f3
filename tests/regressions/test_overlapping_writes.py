"""Calls that write into elements which they read elsewhere: eager's result, or eager's error."""

import random

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.eager import assert_as_eager, assert_same_tensor

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def shift_slice(y):
    y[1:-1] += y[2:]


OVERLAPPING_WRITES = {
    "shifted slice": shift_slice,
    "assigned slice": lambda y: y.__setitem__(slice(1, None), y[:-1]),
    "copy": lambda y: y[1:].copy_(y[:-1]),
    "copy of a transposed view": lambda y: y.view(2, 5).copy_(y.view(5, 2).t()),
    "broadcast row": lambda y: y.mul_(y[0]),
    "out": lambda y: torch.add(y[1:], y[:-1], out=y[1:]),
    "concat into an operand": lambda y: torch.cat([y[:3], y[3:6]], out=y[2:8]),
    "every second element": lambda y: y[::2].add_(y[:5]),
    "rows by index": lambda y: y.__setitem__(torch.arange(3), y[1:4]),
    "a list with a tensor twice": lambda y: torch._foreach_mul_([y, y], 3.0),
    "a list that overlaps itself": lambda y: torch._foreach_add_([y[1:], y[:-1]], 1.0),
    "a list that reads what it wrote": lambda y: torch._foreach_add_(
        [y[:5], y[5:]], [y[5:], y[:5]]
    ),
}
SEPARATE_WRITES = {
    "itself": lambda y: y.mul_(y),
    "slice of itself": lambda y: y[1:].mul_(2).add_(y[1:]),
    "interleaved": lambda y: y[::2].add_(y[1::2]),
    "columns": lambda y: y.view(2, 5)[:, :2].add_(y.view(2, 5)[:, 3:]),
    "parts in a list": lambda y: torch._foreach_add_([y[:5], y[5:]], [y[:5], y[5:]]),
    "augmented slice": lambda y: y.__setitem__(slice(1, 4), y[1:4].mul_(3)),
}


def result_or_error(fn, x):
    try:
        return fn(x)
    except (RuntimeError, tofuse.CaptureError) as error:
        return str(error)


@pytest.mark.parametrize("name", OVERLAPPING_WRITES)
def test_write_into_elements_that_the_call_reads_elsewhere(name):
    """Eager's result, or eager's error; reading everything first would give neither."""

    def write(x):
        y = x * 2
        OVERLAPPING_WRITES[name](y)
        return y

    x = torch.arange(10.0) + 1
    expected = result_or_error(write, x)
    assert_result(result_or_error(tofuse.compile(write), x), expected)
    traced = result_or_error(tofuse.compile(write, capture="trace"), x)
    assert "writes into elements that it also reads" in traced or traced == expected


def assert_result(got, expected):
    if isinstance(expected, str):
        assert got == expected
    else:
        assert_same_tensor(got, expected)


@pytest.mark.parametrize("name", SEPARATE_WRITES)
def test_write_beside_the_elements_that_the_call_reads(name):
    """These are compiled."""

    def write(x):
        y = x * 2
        SEPARATE_WRITES[name](y)
        return y

    assert_as_eager(write, torch.arange(10.0) + 1, rtol=0, atol=0)
    report = tofuse.explain(write)(torch.arange(10.0))
    assert report.kernels and not report.notes


def random_slices(rng):
    """Return a program that writes slices of a tensor with slices of it, and what it does."""
    steps = []
    for _ in range(2):
        bounds = [
            (a, a + 3 * step + 1, step)
            for a, step in ((rng.randrange(6), 1), (rng.randrange(6), rng.choice((1, 2))))
        ]
        steps.append((rng.choice(SLICE_WRITES), *(slice(*b) for b in bounds)))

    def write(x):
        y = x * 2
        for operation, written, read in steps:
            operation(y[written], y[read])
        return y

    return write


SLICE_WRITES = (
    lambda a, b: a.add_(b),
    lambda a, b: a.copy_(b),
    lambda a, b: a.copy_(b * 2),
    lambda a, b: a.addcmul_(b, b),
    lambda a, b: a.sub_(b.sum()),
    lambda a, b: torch._foreach_add_([a, b], [b, a]),
    lambda a, b: torch._foreach_mul_([a, b], 2.0),
)


def test_random_slices_written_from_slices():
    rng, errors = random.Random(0), 0
    for _ in range(25):
        torch._dynamo.reset()
        write, x = random_slices(rng), torch.arange(12.0) + 1
        expected = result_or_error(write, x)
        assert_result(result_or_error(tofuse.compile(write), x), expected)
        errors += isinstance(expected, str)
    assert 5 < errors < 20


INPLACE_OPTIONS = {
    "by name": lambda y: F.relu(y, inplace=True),
    "by position": lambda y: F.relu(y, True),
    "after numbers": lambda y: F.hardtanh(y, -1.0, 1.0, True),
    "dropout": lambda y: F.dropout(y, 1.0, True, True),
    "tensor by name": lambda y: torch.relu_(input=y),
    "module": lambda y: torch.nn.LeakyReLU(0.1, inplace=True)(y),
}


@pytest.mark.parametrize("option", INPLACE_OPTIONS)
def test_an_option_makes_a_call_write_its_operand(option):
    """The elements between windows stay as they are; tracing refuses writes into windows."""

    def write(x):
        y = x * 2
        INPLACE_OPTIONS[option](y.unfold(0, 2, 3))
        return y + 1

    x = torch.arange(-6.0, 7.0)
    assert_as_eager(write, x, rtol=0, atol=0)
    with pytest.raises(tofuse.CaptureError, match="windows"):
        tofuse.compile(write, capture="trace")(x)


BESIDE = {  # windows of a storage of 18 elements, by `as_strided` of a part of it
    "gaps": (lambda s: s.view(3, 6)[:, ::2], (2, 2), (1, 2), 0),
    "before": (lambda s: s[9:], (3,), (2,), 2),
    "after": (lambda s: s[:9], (4,), (4,), 3),
}


@pytest.mark.parametrize("name", BESIDE)
def test_writes_beside_an_argument(name):
    """AOTAutograd loses what a view by `as_strided` writes into memory beside the argument."""
    part, size, strides, offset = BESIDE[name]

    def program(x):
        return torch.as_strided(x, size, strides, offset).sin_() * 2, x.cos()

    storages = [torch.arange(18.0) for _ in range(3)]
    got, expected = tofuse.compile(program)(part(storages[0])), program(part(storages[1]))
    torch.testing.assert_close(got, expected)
    assert storages[0].equal(storages[1])
    with pytest.raises(tofuse.errors.CaptureError, match="beside an argument"):
        tofuse.compile(program, capture="trace")(part(storages[2]))
    assert storages[2].equal(torch.arange(18.0))
