"""Compare programs with loops over time with eager, and look for their recurrences."""

import torch

import tofuse


def compare(f, *args, **tolerance):
    expected = f(*args)
    got = tofuse.compile(f, capture="trace")(*args)
    torch.testing.assert_close(got, expected, equal_nan=True, **tolerance)
    if isinstance(expected, torch.Tensor):
        assert got.stride() == expected.stride()


def has_recurrence(f, *args):
    kernels = tofuse.explain(f, capture="trace")(*args).kernels
    return any("= previous<" in k.loops for k in kernels)
