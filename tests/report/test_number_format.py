"""Bytes, times and ratios of every magnitude are printed without exponents, to three digits."""

import math
import random
import re

import pytest
import torch

import tofuse
from tofuse.report.number_format import show_bytes, show_ratio, show_us

UNITS = {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "µs": 1, "ms": 1e3, "s": 1e6, "": 1}
NUMBER = re.compile(r"(\d+(?:\.\d+)?) ?(x|\S*)")


@pytest.mark.parametrize("show", [show_bytes, show_us, show_ratio])
def test_all_magnitudes(show):
    """The text is a plain number with a unit, and differs from the number by its rounding only."""
    rng = random.Random(0)
    powers = [10.0**k for k in range(-6, 19)]
    near = [p * f for p in powers for f in (0.9996, 0.99949, 1, 1.0004, 1.005, 2, 9.995)]
    for x in (0.0, *near, *(10 ** rng.uniform(-6, 18) for _ in range(5000))):
        text = show(x)
        found = NUMBER.fullmatch(text)
        assert found, text
        value = float(found[1]) * UNITS[found[2].removesuffix("x")]
        assert math.isclose(value, x, rel_tol=0.0051), (x, text)
        if found[2] in ("B", "KB", "MB", "GB", "µs", "ms"):
            assert float(found[1]) < 1000, text


@pytest.mark.parametrize("size", [(3, 2), (1000, 2), (100_000, 3), (2, 1_000_000)], ids=str)
@pytest.mark.parametrize("measure", [False, True])
def test_reports_have_no_exponents(size, measure, fresh_dynamo):
    report = tofuse.explain(lambda a: (a * 2 + 1).sqrt().sum(), measure=measure)(torch.rand(size))
    assert not re.search(r"\de[+-]\d", str(report))


def test_a_ratio_of_thousands():
    assert show_ratio(2000) == "2000x" and show_ratio(2.5) == "2.5x"
