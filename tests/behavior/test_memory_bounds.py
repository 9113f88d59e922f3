"""Kernels read no byte past the end of a tensor: it ends at a page without access.

A process of its own runs the calls, since one byte out of bounds ends it.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tofuse
from suites.fuzz.guard_pages import GuardPages

ROOT = Path(__file__).resolve().parents[2]
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
WIDTHS = (1, 2, 7, 8, 9, 15, 17, 31, 33, 47, 63, 65)


def products_of_columns(x, y, z):
    """Multiply-adds in which a mask selects the lanes of a tail: sums start with zeros."""
    return (x * 0.3).sum(0), (x * y).sum(), (x * z).sum(0), x * y + z


def padded_products(x, y, z):
    return torch.nn.functional.pad(x * y + z, (3, 5)), torch.cat([x * y + z, x], 1)


def two_columns(x):
    """Its backward reads conditions of one byte: eight of them fill half of a vector."""
    return x.tanh().cumprod(1)


def run_of_any_width():
    torch.manual_seed(0)
    guard = GuardPages("end")
    for program in (products_of_columns, padded_products):
        for dtype in DTYPES:
            torch._dynamo.reset()
            compiled = tofuse.compile(program, dynamic=True, specialize=False)
            for width in WIDTHS:
                tensors = [torch.randn(5, width).to(dtype) for _ in range(3)]
                results = compiled(*guard.copies(tensors))
                for got, expected in zip(results, program(*tensors), strict=True):
                    torch.testing.assert_close(got, expected, rtol=0.02, atol=0.05)


def run_of_one_width():
    guard = GuardPages("end")
    guard.install()
    compiled = tofuse.compile(two_columns, capture="trace")
    for dtype in DTYPES:
        for rows in (20, 23, 31, 33):
            x = torch.randn(2, rows, 2).to(dtype)
            outcomes = []
            for run, argument in ((compiled, guard.copies([x])[0]), (two_columns, x)):
                argument.requires_grad_()
                result = run(argument)
                outcomes.append((result, *torch.autograd.grad(result.sum(), argument)))
            torch.testing.assert_close(*outcomes, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("run", ["run_of_any_width", "run_of_one_width"])
def test_tails_of_rows_end_with_the_tensor(run):
    code = f"from tests.behavior.test_memory_bounds import {run}; {run}()"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-2000:]
