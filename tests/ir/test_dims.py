"""Sizes as polynomials: exact division."""

import pytest

from tofuse.ir.dims import SymDim, exact_div, parse_dim, product, symbol

S, T = symbol("s0"), symbol("s1")


@pytest.mark.parametrize(
    ("quotient", "divisor"),
    [
        (2, 1 + S),
        (S, 1 + S),
        (1 + T, S * 3),
        (S * S + T - 4, S + T * 2 + 1),
        (S - T, S + T),
        (T * S + 1, -1 * S + 7),
    ],
    ids=str,
)
def test_a_product_divided_by_a_factor_is_the_other(quotient, divisor):
    whole = product((quotient, divisor))
    assert exact_div(whole, divisor) == quotient
    assert exact_div(whole, quotient) == divisor
    assert exact_div(whole + 1, divisor) is None
    assert exact_div(0, divisor) == 0


@pytest.mark.parametrize(
    ("whole", "divisor"),
    [("s0", "2"), ("s0+1", "s0"), ("s0*s0+1", "s0+1"), ("4", "s0"), ("s0+s1", "s0+2")],
)
def test_division_with_a_remainder_has_no_result(whole, divisor):
    assert exact_div(parse_dim(whole), parse_dim(divisor)) is None
    assert isinstance(parse_dim(whole) * S, SymDim)
    assert exact_div(3, 0) is None and exact_div(S, 0) is None
