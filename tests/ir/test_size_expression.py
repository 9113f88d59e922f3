"""Size expressions evaluate as Python does, in the interpreter and in a plan's source."""

import math
from random import Random

import pytest

from tests.support.call_arguments import random_size
from tofuse.ir.dims import symbol
from tofuse.ir.size_expression import (
    SIZE_FUNCTIONS,
    apply_function,
    evaluate_size,
)

S0, S1 = symbol("s0"), symbol("s1")


def test_sums_and_products_of_sizes_are_polynomials():
    assert apply_function("+", S0, 1) == S0 + 1
    assert apply_function("*", S0, S1) == S0 * S1
    assert repr(apply_function("+", S0, 0.5)) == "s0 + 0.5"


@pytest.mark.parametrize(("a", "b"), [(7, 2), (-7, 2), (7, -2), (-7, -2), (6, 3), (-6, 3)])
def test_truncating_division(a: int, b: int):
    quotient = evaluate_size(apply_function("truncdiv", S0, b), {"s0": a})
    assert quotient == math.trunc(a / b)
    assert evaluate_size(apply_function("truncmod", S0, b), {"s0": a}) == math.fmod(a, b)


def test_the_length_of_a_slice():
    term = apply_function("slice_length", S0, 1, -1, 2)
    assert evaluate_size(term, {"s0": 8}) == len(range(8)[1:-1:2])


def test_the_text_evaluates_as_the_tree():
    """The source of a plan is this text, with the functions by name."""
    random = Random(3)
    sizes = {"s0": 5, "s1": 12, "e0": 1}
    namespace = dict(SIZE_FUNCTIONS) | {"inf": math.inf, "nan": math.nan}
    compared = 0
    for _ in range(2_000):
        term = random_size(random, 2)
        try:
            expected = evaluate_size(term, sizes)
        except (ArithmeticError, TypeError, ValueError):
            continue
        compared += 1
        assert repr(eval(repr(term), namespace, sizes)) == repr(expected)
    assert compared > 500
