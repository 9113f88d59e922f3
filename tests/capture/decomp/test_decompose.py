"""Decompositions give eager's results where torch's own rules do not."""

import pytest
import torch

import tofuse

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.mark.parametrize("ends", [(4.3, -3), (0.9, 60.7), (-7.5, 7.5)])
def test_numbers_between_two_ends(ends):
    start, end = ends
    program = lambda x: torch.linspace(start, end, 50, dtype=x.dtype) + x  # noqa: E731
    for dtype in (torch.int64, torch.int32, torch.float32, torch.float16, torch.bfloat16):
        x = torch.zeros((), dtype=dtype)
        torch.testing.assert_close(tofuse.compile(program)(x), program(x))
