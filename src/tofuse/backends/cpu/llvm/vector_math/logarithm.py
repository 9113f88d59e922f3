"""Logarithms and inverse hyperbolic functions: log, log2, log10, log1p, asinh, acosh, atanh.

x = 2^k m with sqrt(1/2) <= m < sqrt(2), f = m - 1, log x = k ln 2 + log(1 + f). In binary32 log(1 +
f) is f - f^2/2 + f^3 P(f); in binary64 it is fdlibm's e_log.c form in s = f / (2 + f) (Ng, 1993).
Polynomials are minimax (Remez exchange in 220-bit arithmetic), then rounded to the format.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from tofuse.backends.cpu.llvm.vector_math.formula_builder import FormulaBuilder, Value


@dataclass(frozen=True)
class LogTable:
    """Constants of one format; pairs are the high and the low part of a constant."""

    sqrt_half_bits: int
    log2_e: tuple[float, float]
    log10_e: tuple[float, float]
    log10_2: tuple[float, float]
    huge: float  # above, sqrt(x^2 +- 1) and x + 1 round to x; x^2 overflows only far above


def log(b: FormulaBuilder, x: Value) -> Value:
    return _apply_formula(b, x, _log)


def log2(b: FormulaBuilder, x: Value) -> Value:
    return _apply_formula(b, x, lambda b, k, f: _scaled_log1p(b, f, TABLES[f.scalar].log2_e) + k)


def log10(b: FormulaBuilder, x: Value) -> Value:
    return _apply_formula(b, x, _log10)


def log1p(b: FormulaBuilder, x: Value) -> Value:
    y = _log1p(b, x)
    # 1 + x > 0 and finite, as one comparison
    is_special = ~is_normal(b, x + 1.0)
    (y,) = b.branch_if_any(is_special, (y,), lambda: (_with_pole(b, x, -1.0, y),))
    return b.copysign(y, x)


def asinh(b: FormulaBuilder, x: Value) -> Value:
    """Return log1p(a + a^2 / (1 + sqrt(1 + a^2))) with a = |x|."""
    a = b.abs(x)
    inner = a + a * (a / (b.intrinsic("sqrt", b.fma(a, a, 1.0)) + 1.0))
    return b.copysign(_log1p_or_log_2x(b, a, inner), x)


def acosh(b: FormulaBuilder, x: Value) -> Value:
    """Return log1p(t + sqrt(2 t + t^2)) with t = x - 1."""
    t = x - 1.0
    y = _log1p_or_log_2x(b, x, t + b.intrinsic("sqrt", b.fma(t, t, t + t)))
    return b.select(x < 1.0, y.const(math.nan), y)


def atanh(b: FormulaBuilder, x: Value) -> Value:
    """Return log1p(2 a / (1 - a)) / 2 with a = |x|."""
    a = b.abs(x)
    v = (a + a) / (1.0 - a)
    y = _with_pole(b, v, -1.0, _log1p(b, v)) * 0.5
    return b.copysign(y, x)


def _log1p_or_log_2x(b: FormulaBuilder, x: Value, inner: Value) -> Value:
    """Return log1p(inner), or log(2 x) where `inner` rounds to 2 x or its square overflows."""
    huge = x > TABLES[x.scalar].huge
    y = _log1p(b, b.select(huge, x, inner))
    y = b.select(huge, y + x.format.ln2[0], y)
    return b.select(x < math.inf, y, x)


def _log1p(b: FormulaBuilder, x: Value) -> Value:
    """Return log(1 + x).

    u = 1 + x gives k and m. The rounding error of u, x - (u - 1), is scaled exactly and added to f.
    """
    form = x.format
    u = x + 1.0
    biased = u.bits + (form.one_bits - TABLES[x.scalar].sqrt_half_bits)
    k, f = _split_biased_bits(b, biased, x)
    rounding_error = x - (u - 1.0)
    exponent = biased & -(1 << form.mantissa)
    # 2^(2-k), not 2^-k: with k up to bias + 1 the latter would be subnormal
    four_over = b.as_float(exponent.const((2 * form.bias + 2) << form.mantissa) - exponent)
    return _log(b, k, b.fma(rounding_error * four_over, 0.25, f))


def _apply_formula(
    b: FormulaBuilder, x: Value, formula: Callable[[FormulaBuilder, Value, Value], Value]
) -> Value:
    """Apply a formula in k and f; subnormals, zeros, inf and nan are handled under a branch."""

    def slow() -> tuple[Value, ...]:
        return (_with_pole(b, x, 0.0, formula(b, *split_exponent(b, x))),)

    y = formula(b, *split_exponent_normal(b, x))
    (y,) = b.branch_if_any(~is_normal(b, x), (y,), slow)
    return y


def is_normal(b: FormulaBuilder, x: Value) -> Value:
    """Return whether x is a positive normal number."""
    form = x.format
    lowest = 1 << form.mantissa
    return b.compare("ult", x.bits - lowest, form.sign_mask - 2 * lowest)


def split_exponent(b: FormulaBuilder, x: Value) -> tuple[Value, Value]:
    """Return k, as a float, and f for positive finite x; undefined elsewhere."""
    form = x.format
    is_subnormal = x < form.smallest_normal
    lift = form.mantissa + 1
    bits = b.select(is_subnormal, x * 2.0**lift, x).bits
    k, f = _split_biased_bits(b, bits + (form.one_bits - TABLES[x.scalar].sqrt_half_bits), x)
    return b.select(is_subnormal, k - float(lift), k), f


def split_exponent_normal(b: FormulaBuilder, x: Value) -> tuple[Value, Value]:
    """Return k and f for positive normal x; undefined elsewhere."""
    return _split_biased_bits(b, x.bits + (x.format.one_bits - TABLES[x.scalar].sqrt_half_bits), x)


def _split_biased_bits(b: FormulaBuilder, biased: Value, x: Value) -> tuple[Value, Value]:
    form = x.format
    mantissa = biased & ((1 << form.mantissa) - 1)
    f = b.as_float(mantissa + TABLES[x.scalar].sqrt_half_bits) - 1.0
    # an integer or-ed into the low bits of 2^mantissa is 2^mantissa plus the integer
    anchor = (form.bias + form.mantissa) << form.mantissa
    k = b.as_float((biased >> form.mantissa) | anchor) - (2.0**form.mantissa + form.bias)
    return k, f


def _log(b: FormulaBuilder, k: Value, f: Value) -> Value:
    high, low = f.format.ln2
    return b.fma(k, high, f + b.fma(k, low, _log1p_minus_f(b, f)))


def _log10(b: FormulaBuilder, k: Value, f: Value) -> Value:
    table = TABLES[f.scalar]
    high, low = table.log10_2
    return b.fma(k, high, b.fma(k, low, _scaled_log1p(b, f, table.log10_e)))


def _scaled_log1p(b: FormulaBuilder, f: Value, factor: tuple[float, float]) -> Value:
    """Return log(1 + f) times a constant given as two parts."""
    high, low = factor
    return b.fma(f, high, b.fma(f, low, _log1p_minus_f(b, f) * high))


def _log1p_minus_f(b: FormulaBuilder, f: Value) -> Value:
    """Return log(1 + f) - f."""
    if f.scalar == "float":
        return f * f * b.horner(f, (-0.5, *CUBIC_F32))
    half = f * f * 0.5
    s = f / (f + 2.0)
    z = s * s
    return b.fma(s, b.fma(z, b.horner(z, SERIES_F64), half), -half)


def _with_pole(b: FormulaBuilder, x: Value, pole: float, y: Value) -> Value:
    """Return -inf at the pole, nan below it and for nan, inf for inf, else y."""
    y = b.select(x < math.inf, y, x)
    y = b.select(x < pole, y.const(math.nan), y)
    return b.select(x.equals(pole), y.const(-math.inf), y)


CUBIC_F32 = (  # (log(1 + f) - f + f^2 / 2) / f^3, error 2^-27.3 of log(1 + f)
    0.3333333134651184,
    -0.2500082552433014,
    0.20001238584518433,
    -0.1662314087152481,
    0.14201320707798004,
    -0.13161998987197876,
    0.12765717506408691,
    -0.07634709775447845,
)
SERIES_F64 = (  # (2 atanh s - 2 s) / s^3 in s^2, error 2^-65.7
    0.6666666666666666,
    0.40000000000006375,
    0.285714285690441,
    0.22222222653149562,
    0.18181775153469049,
    0.15387113278403505,
    0.13249607767617932,
    0.1325599070069499,
)
TABLES = {
    "float": LogTable(
        sqrt_half_bits=0x3F3504F3,
        log2_e=(1.4426950216293335, 1.925963033500011e-08),
        log10_e=(0.4342944920063019, -1.0103049952192578e-08),
        log10_2=(0.3010300099849701, -1.432098883924482e-08),
        huge=2.0**30,
    ),
    "double": LogTable(
        sqrt_half_bits=0x3FE6A09E667F3BCD,
        log2_e=(1.4426950408889634, 2.0355273740931033e-17),
        log10_e=(0.4342944819032518, 1.098319650216765e-17),
        log10_2=(0.3010299956639812, -2.8037281277851704e-18),
        huge=2.0**60,
    ),
}
