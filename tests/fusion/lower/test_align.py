"""Reshapes that split a dimension along which values are concatenated, sliced or padded."""

import random

import pytest
import torch

from tests.support.eager import assert_as_eager
from tofuse.config import make_config
from tofuse.driver.compile import compile_reporting

LAST = ["sum", "mean", "transpose", "concat", "plain"]


def random_program(seed):
    """Return a program of concats, slices and pads by multiples of a number, and its inputs."""
    choose = random.Random(seed)
    step, width = choose.choice([2, 3, 4]), choose.choice([1, 4, 5, 8])
    sizes = [
        choose.choice([1, 2, 3]) * step if choose.random() < 0.8 else choose.choice([1, 2, 5])
        for _ in range(choose.choice([2, 2, 3]))
    ]
    inputs = [torch.randn(n, width) for n in sizes]
    changes = [choose.choice([torch.sin, torch.neg, torch.relu, rotated]) for _ in sizes]
    scaled, padded, sliced, reversed_, merged, squared = (choose.random() < 0.45 for _ in range(6))
    above, below, first = (step * choose.choice([0, 1, 2]) for _ in range(3))
    fraction, last = choose.random(), choose.choice(LAST)

    def program(scale, *pieces):
        whole = torch.cat([change(t) for change, t in zip(changes, pieces, strict=True)])
        if scaled:
            whole = whole * scale[:, None]
        if padded:
            whole = torch.nn.functional.pad(whole, (0, 0, above, below))
        if sliced and first < whole.shape[0]:
            whole = whole[first:]
        if reversed_:
            whole = whole + whole.flip(0)
        rows = whole.shape[0]
        divisors = [d for d in range(1, rows + 1) if rows % d == 0]
        outer = divisors[int(fraction * len(divisors))]
        shape = (outer, rows // outer * width) if merged else (outer, rows // outer, width)
        whole = whole.reshape(shape)
        if squared:
            whole = torch.exp(-whole * whole)
        if last == "sum":
            return whole.sum(-1)
        if last == "mean":
            return whole - whole.mean(0)
        if last == "transpose":
            return whole.transpose(0, 1) * 2
        return torch.cat([whole, whole * 2]).reshape(-1) if last == "concat" else whole * 3

    return program, [torch.randn(sum(sizes)), *inputs]


def rotated(t):
    """Return both halves exchanged, by a slice of a concat."""
    half = t.shape[0] // 2
    return torch.cat([t, t])[half : half + t.shape[0]]


@pytest.mark.broad(4)
@pytest.mark.parametrize("seed", range(48))
def test_random_programs(seed):
    program, inputs = random_program(seed)
    options = {"strict": True, "dynamic": seed % 4 == 0}
    assert_as_eager(program, *inputs, rtol=1e-4, atol=1e-4, calls=1, options=options)


@pytest.mark.parametrize("rows", [1, 33])
@pytest.mark.parametrize("by_assignment", [False, True])
def test_codes_that_are_packed_by_halves_of_the_rows(rows, by_assignment):
    """The codes of the first half of the rows are the upper bits, as in HQQ: one kernel."""
    lines, depth, group = 512, 512, 64

    def layer(x, codes, scale, zero):
        half = codes.shape[0]
        if by_assignment:
            both = torch.empty(2 * half, group, dtype=torch.uint8)
            both[:half], both[half:] = codes >> 4, codes & 15
        else:
            both = torch.cat([codes >> 4, codes & 15])
        weight = ((both.to(x.dtype) - zero) * scale).reshape(lines, depth)
        return x @ weight.t()

    groups = lines * depth // group
    codes = torch.randint(0, 256, (groups // 2, group), dtype=torch.uint8)
    scale, zero, x = torch.rand(groups, 1), 15 * torch.rand(groups, 1), torch.randn(rows, depth)
    run, report = compile_reporting(layer, make_config({"hand_back": False, "dynamic": False}))
    expected = layer(x.double(), codes, scale, zero)
    torch.testing.assert_close(run(x, codes, scale, zero).double(), expected, rtol=1e-4, atol=1e-2)
    if rows == 1:
        assert len(report.regions) == 1
