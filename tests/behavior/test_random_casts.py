"""Random programs of casts between all dtypes, of tensors and constants in and out of their range.

The result of each cast has eager's bits, also where the constant is known when compiling.
"""

import math
import random

import torch

import tofuse
from tests.support.numbers import TORCH_DTYPES, assert_same_bits
from tofuse.ir.types import DType

PROGRAMS = 16
NUMBERS = (
    *(math.inf, -math.inf, math.nan, 0.0, -0.0, 0.5, -0.75, 127.5, 128.0, 255.0, -129.0, 300.0),
    *(448.0, 464.0, 465.0, 57344.0, 61440.0, 65519.0, 65520.0, 65537.0, 2.0**31, -(2.0**31)),
    *(2.0**31 - 1, -(2.0**31) - 1, 3e9, 2.0**32 + 5, 2.0**53 - 1, 2.0**63, -(2.0**63), 1e19),
    *(-1e19, 1e30, 3.4e38, 3.5e38, 1e300, 1e-45, 1e-320),
)
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
ALL = tuple(TORCH_DTYPES.values())
FLOATS = tuple(TORCH_DTYPES[d] for d in (DType.F64, DType.F32, DType.F16, DType.BF16))


def special(dtype, count, rng):
    wide = torch.tensor(rng.choices(NUMBERS, k=count), dtype=torch.float64)
    if dtype.is_floating_point:
        return wide.to(dtype)
    whole = wide.nan_to_num(7).clamp(-(2.0**62), 2.0**62).long()
    return (whole * rng.choice([1, 3, 257])).to(dtype)


def plain(x):
    """Return a tensor in a dtype that arithmetic supports."""
    return x.float() if x.dtype in FP8 else x


SOURCES = {
    "full": lambda x, mask, c, dtype: torch.full(x.shape, c, dtype=dtype),
    "scalar": lambda x, mask, c, dtype: torch.tensor(c, dtype=dtype).expand(x.shape),
    "logarithm of 0": lambda x, mask, c, dtype: torch.log(torch.full(x.shape, 0.0, dtype=dtype)),
    "folded": lambda x, mask, c, dtype: torch.full(x.shape, c, dtype=dtype) * 2.0 + 1.0,
    "quotient by 0": lambda x, mask, c, dtype: torch.full(x.shape, c, dtype=dtype) / 0.0,
    "selected": lambda x, mask, c, dtype: torch.where(mask, plain(x).to(dtype), c),
    "sum": lambda x, mask, c, dtype: torch.full(x.shape, c, dtype=dtype).sum().expand(x.shape),
    "cast": lambda x, mask, c, dtype: x,
}


def random_program(rng):
    """Return a function of three tensors and a mask; each step casts a source several times."""
    steps = []
    for name in ("cast", *rng.choices(list(SOURCES), k=rng.randint(2, 5))):
        dtype = rng.choice(FLOATS)
        number = float(torch.tensor(rng.choice(NUMBERS), dtype=torch.float64).to(dtype))
        steps.append((name, number, dtype, rng.choices(ALL, k=rng.randint(1, 3))))

    def program(mask, *tensors):
        values = list(tensors)
        for k, (name, c, dtype, casts) in enumerate(steps):
            value = SOURCES[name](values[(7 * k) % len(values)], mask, c, dtype)
            for to in casts:
                value = value.to(to)
            values.append(value.clone())
        return values[len(tensors) :]

    return program, steps


def test_random_casts_have_eagers_bits(request):
    for seed in range(400 if request.config.getoption("--full") else PROGRAMS):
        rng = random.Random(seed)
        program, steps = random_program(rng)
        count = rng.choice([1, 3, 16, 33, 100])
        mask = torch.tensor(rng.choices([True, False], k=count))
        tensors = [special(rng.choice(ALL), count, rng) for _ in range(3)]
        torch._dynamo.reset()
        got = tofuse.compile(program, hand_back=False)(mask, *tensors)
        expected = program(mask, *tensors)
        for step, ours, eagers in zip(steps, got, expected, strict=True):
            if ours.dtype in FP8:
                ours, eagers = ours.view(torch.uint8), eagers.view(torch.uint8)
            try:
                assert_same_bits(ours, eagers)
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {step}") from error


def test_every_cast_of_special_values_has_eagers_bits():
    """Two casts of one tensor to each dtype: of values in memory, and of values in registers."""

    def program(x):
        negative = -x
        return [y.to(dtype) for y in (x, negative) for dtype in ALL if dtype not in FP8]

    for dtype in FLOATS:
        x = torch.tensor(NUMBERS * 3, dtype=torch.float64).to(dtype)
        torch._dynamo.reset()
        got = tofuse.compile(program, hand_back=False)(x)
        for ours, eagers in zip(got, program(x), strict=True):
            assert_same_bits(ours, eagers)
