"""Numbers in and out of the range of integer tensors: eager's results, and errors where eager's."""

import math
import random

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.numbers import assert_same_bits

NUMBERS = (
    *(-300, -129, -1, 0, 127, 128, 255, 256, 300, 32768, 70000, 2**31, -(2**31) - 1, 2**33 + 5),
    *(2**63 - 1, -(2**63), -2.5, 300.5, 1e10, 1e30, math.inf, math.nan),
)
DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)


def assigned(x, c):
    y = x.clone()
    y[2:] = c
    return y


OPS = {
    "add": lambda x, c: x + c,
    "sub": lambda x, c: x - c,
    "rsub": lambda x, c: c - x,
    "mul": lambda x, c: x * c,
    "div": lambda x, c: x / c,
    "div_trunc": lambda x, c: torch.div(x, c, rounding_mode="trunc"),
    "floor_divide": lambda x, c: x // c,
    "remainder": lambda x, c: x % c,
    "eq": lambda x, c: x == c,
    "lt": lambda x, c: x < c,
    "ge": lambda x, c: x >= c,
    "bitwise_and": lambda x, c: x & c,
    "alpha of add": lambda x, c: torch.add(x, x, alpha=c),
    "alpha of sub": lambda x, c: torch.sub(x, x, alpha=c),
    "clamp_min": lambda x, c: x.clamp(min=c),
    "clamp_max": lambda x, c: x.clamp(max=c),
    "clamp": lambda x, c: x.clamp(c, 300),
    "where": lambda x, c: torch.where(x > 1, c, x),
    "where a number": lambda x, c: torch.where(x > c, x, 1),
    "masked_fill": lambda x, c: x.masked_fill(x > 1, c),
    "fill": lambda x, c: x.clone().fill_(c),
    "full": lambda x, c: torch.full((4,), c, dtype=x.dtype) + x[:1],
    "full_like": lambda x, c: torch.full_like(x, c),
    "setitem": assigned,
    "threshold": lambda x, c: F.threshold(x, c, 1),
    "value of threshold": lambda x, c: F.threshold(x, 1, c),
    "hardtanh": lambda x, c: F.hardtanh(x, -1, c),
    "pad": lambda x, c: F.pad(x, (1, 1), value=c),
    "foreach": lambda x, c: torch._foreach_clamp_min([x], c)[0],
    "nan_to_num": lambda x, c: torch.nan_to_num(x, c),
    "product with ones": lambda x, c: torch.ones_like(x) * c,
}


def operand(dtype):
    return torch.tensor([0, 1, 2, 100, 127, 3, -1, -128]).to(dtype)


def outcome(fn, *args):
    try:
        return fn(*args)
    except Exception as error:
        return error


def cases(dtype):
    """Return names of ops and numbers in random order: with a result in eager, with an error."""
    pairs = [(name, c) for name in OPS for c in NUMBERS]
    random.Random(str(dtype)).shuffle(pairs)
    fails = [isinstance(outcome(OPS[n], operand(dtype), c), Exception) for n, c in pairs]
    return (
        [p for p, f in zip(pairs, fails, strict=True) if not f],
        [p for p, f in zip(pairs, fails, strict=True) if f],
    )


def test_results_with_any_number_are_eagers(request):
    for dtype in DTYPES:
        chosen, x = cases(dtype)[0], operand(dtype)
        chosen = chosen if request.config.getoption("--full") else chosen[:60]

        def program(x, chosen=chosen):
            return [OPS[name](x, c) for name, c in chosen]

        torch._dynamo.reset()
        got = tofuse.compile(program, hand_back=False)(x)
        for (name, c), ours, eagers in zip(chosen, got, program(x), strict=True):
            try:
                assert_same_bits(ours, eagers)
            except AssertionError as error:
                raise AssertionError(f"{name} by {c}") from error


@pytest.mark.filterwarnings("ignore")
def test_numbers_that_are_errors_in_eager_are_errors(request):
    for dtype in DTYPES:
        chosen, x = cases(dtype)[1], operand(dtype)
        for name, c in chosen if request.config.getoption("--full") else chosen[:8]:
            torch._dynamo.reset()
            run = tofuse.compile(lambda x, op=OPS[name], c=c: op(x, c), hand_back=False)
            ours = outcome(run, x)
            assert isinstance(ours, (RuntimeError, ValueError)), f"{name} by {c} of {dtype}: {ours}"


def test_a_number_that_varies_is_checked_at_each_call():
    for name in ("add", "lt", "clamp_max", "masked_fill", "full", "remainder"):
        for dtype in (torch.uint8, torch.int16, torch.bool):
            torch._dynamo.reset()
            compiled = tofuse.compile(OPS[name], hand_back=False)
            for c in (3, 5, 256, 300, 70000, -7, -300, -(2**63)):
                ours, eagers = (outcome(fn, operand(dtype), c) for fn in (compiled, OPS[name]))
                assert isinstance(ours, Exception) == isinstance(eagers, Exception), (name, c)
                if not isinstance(eagers, Exception):
                    assert_same_bits(ours, eagers)


def test_divisors_of_bytes_need_not_fit_into_bytes():
    image = torch.arange(96, dtype=torch.uint8)
    report = tofuse.explain(lambda x: (x / 256 - 0.5) * 2)(image)
    assert len(report.kernels) == 1 and not report.library_calls
