"""Powers: pow, and the reciprocal square root."""

import math

from tofuse.backends.cpu.llvm.vector_math.exponential import TABLES as EXP_TABLES
from tofuse.backends.cpu.llvm.vector_math.exponential import round_to_integer, scale
from tofuse.backends.cpu.llvm.vector_math.formula_builder import FormulaBuilder, Value
from tofuse.backends.cpu.llvm.vector_math.logarithm import (
    is_normal,
    split_exponent,
    split_exponent_normal,
)

DoublePair = tuple[Value, Value]


def rsqrt(b: FormulaBuilder, x: Value) -> Value:
    return 1.0 / b.intrinsic("sqrt", x)


def pow(b: FormulaBuilder, x: Value, y: Value) -> Value:
    """Return 2^(y log2 |x|) with extra precision; C99's special cases are under a branch."""
    a = b.abs(x)
    if x.scalar == "float":
        magnitude = b.narrow(_pow_in_binary64(b, b.widen(a), b.widen(y)))
    else:
        magnitude = _pow_in_pairs(b, a, y)
    special = ~(is_normal(b, x) & (b.abs(y) < math.inf))
    (y,) = b.branch_if_any(special, (magnitude,), lambda: (_special_cases(b, x, y, magnitude),))
    return y


def _pow_in_binary64(b: FormulaBuilder, a: Value, y: Value) -> Value:
    """Return a^y to 2^-28 for operands that were binary32, so that no `a` is subnormal."""
    k, f = split_exponent_normal(b, a)
    s = f / (f + 2.0)
    product = y * b.fma(s, b.horner(s * s, LOG2_SERIES_F32), k)
    product = b.clamp_min(
        b.clamp_max(product, 200.0), -200.0
    )  # outside binary32's range on either side
    n, raw = round_to_integer(b, product, 1.0, a.format.bias)
    power = b.as_float(raw << a.format.mantissa)
    return b.horner(product - n, (1.0, *EXP_TABLES["float"].exp2)) * power


def _pow_in_pairs(b: FormulaBuilder, a: Value, y: Value) -> Value:
    """Return a^y with unevaluated sums of two numbers (Dekker 1971) until the last polynomial."""
    high, low = _log2_pair(b, a)
    product = y * high
    error = b.fma(y, low, b.fma(y, high, -product))
    limit = 1100.0
    error = b.select(b.abs(product) < limit, error, 0.0)
    product = b.clamp_min(b.clamp_max(product, limit), -limit)
    n, raw = round_to_integer(b, product, 1.0, 2 * a.format.bias)
    fraction = (product - n) + error
    return scale(b, b.horner(fraction, (1.0, *EXP_TABLES["double"].exp2)), n, raw)


def _log2_pair(b: FormulaBuilder, a: Value) -> DoublePair:
    """Return log2 a to a relative error of about 2^-65.

    It is k + (2 s + s^3 R(s^2)) log2(e) with s = f / (2 + f).
    """
    k, f = split_exponent(b, a)
    d, d_low = b.two_sum(f, 2.0)
    inverse = 1.0 / d
    s = f * inverse
    s_low = b.fma(-s, d_low, b.fma(-s, d, f)) * inverse
    z, z_low = b.two_product(s, s)
    z_low = b.fma(s + s, s_low, z_low)
    two_thirds, two_thirds_low = TWO_THIRDS
    r, r_low = b.fast_two_sum(z.const(two_thirds), z * b.horner(z, SERIES_F64))
    r_low = r_low + two_thirds_low
    cube = _multiply_pairs(b, (s, s_low), _multiply_pairs(b, (z, z_low), (r, r_low)))
    high, low = b.fast_two_sum(s + s, cube[0])
    low = low + b.fma(s_low, 2.0, cube[1])
    log2_e, log2_e_low = LOG2_E
    m, m_low = _multiply_pairs(b, (high, low), (z.const(log2_e), z.const(log2_e_low)))
    total, rest = b.fast_two_sum(k, m)  # k is 0 or larger than m
    return total, rest + m_low


def _multiply_pairs(b: FormulaBuilder, p: DoublePair, q: DoublePair) -> DoublePair:
    high, low = b.two_product(p[0], q[0])
    return high, b.fma(p[0], q[1], b.fma(p[1], q[0], low))


def _special_cases(b: FormulaBuilder, x: Value, y: Value, magnitude: Value) -> Value:
    """Apply C99, annex F.9.4.4; a nan operand not mentioned there gives nan."""
    a = b.abs(x)
    zero = a.equals(0.0)
    grows = (y > 0.0) ^ zero
    at_pole = b.select(grows, y.const(math.inf), 0.0)
    magnitude = b.select(zero | a.equals(math.inf), at_pole, magnitude)
    integral = b.intrinsic("rint", y).equals(y)  # inf is integral, and even
    half = y * 0.5
    odd = integral & b.intrinsic("rint", half).differs(half)
    result = b.flip_sign(magnitude, b.select(odd, x.sign, 0))
    undefined = (x < 0.0) & (a < math.inf) & ~integral
    result = b.select(undefined | b.compare("uno", x, y), y.const(math.nan), result)
    one = y.equals(0.0) | x.equals(1.0) | (a.equals(1.0) & b.abs(y).equals(math.inf))
    return b.select(one, y.const(1.0), result)


LOG2_E = (1.4426950408889634, 2.0355273740931033e-17)
TWO_THIRDS = (0.6666666666666666, 3.700743415417188e-17)
LOG2_SERIES_F32 = tuple(  # 2 atanh(s) / s in s^2, error 2^-36.6, times log2(e)
    c * LOG2_E[0]
    for c in (
        2.0,
        0.6666666269302368,
        0.4000033736228943,
        0.28537100553512573,
        0.23586347699165344,
    )
)
SERIES_F64 = (  # (2 atanh(s) / s - 2 - 2/3 s^2) / s^4 in s^2, error 2^-72
    0.39999999999999936,
    0.28571428571459195,
    0.22222222215222423,
    0.18181819085971418,
    0.15384544957156127,
    0.13336703906332867,
    0.11668016171725863,
    0.12039144072358388,
)
