"""Inverse trigonometric functions: asin, acos, atan, atan2.

asin uses asin a = pi/2 - 2 asin sqrt((1 - a) / 2) above 1/2 (fdlibm, e_asin.c). atan reduces its
operand to [0, 1] and subtracts pi/4 above tan(pi/8), as Cephes' atanf.c does, with one division for
both. Polynomials are minimax (Remez exchange in 220-bit arithmetic), then rounded to the format.
"""

import math

from tofuse.backends.cpu.llvm.vector_math.formula_builder import FormulaBuilder, Value


def asin(b: FormulaBuilder, x: Value) -> Value:
    high, low = HALF_PI[x.scalar]
    above_half, p = _reduced_asin(b, x)
    return b.copysign(b.select(above_half, b.fma(p, -2.0, low) + high, p), x)


def acos(b: FormulaBuilder, x: Value) -> Value:
    """Return pi/2 - asin x for |x| up to 1/2, 2 p above it, and pi - 2 p below -1/2."""
    high, low = HALF_PI[x.scalar]
    above_half, p = _reduced_asin(b, x)
    negative = x.negative
    half_pis = b.select(above_half, b.select(negative, x.const(2.0), x.const(0.0)), x.const(1.0))
    p = b.select(above_half, p + p, -p)
    p = b.flip_sign(p, x.sign)
    return b.fma(half_pis, high, b.fma(half_pis, low, p))


def atan(b: FormulaBuilder, x: Value) -> Value:
    a = b.abs(x)
    steep = a > 1.0
    quarter_pis, p = _atan_ratio(b, steep, b.select(steep, 1.0, a), b.select(steep, a, 1.0))
    return b.copysign(_add_quarter_pis(b, quarter_pis, p), x)


def atan2(b: FormulaBuilder, y: Value, x: Value) -> Value:
    abs_y, abs_x = b.abs(y), b.abs(x)
    steep = abs_y > abs_x
    low, high = b.select(steep, abs_x, abs_y), b.select(steep, abs_y, abs_x)
    is_large = high > x.format.largest * 2.0**-20
    scale = b.select(is_large, x.const(2.0**-20), 1.0)  # so that their sum does not overflow
    low, high = low * scale, high * scale
    both_inf = low.equals(math.inf) & high.equals(math.inf)
    low, high = b.select(both_inf, 1.0, low), b.select(both_inf, 1.0, high)
    high = b.select(high.equals(0.0), 1.0, high)
    quarter_pis, p = _atan_ratio(b, steep, low, high)
    is_left = x.negative
    quarter_pis = b.select(is_left, 4.0 - quarter_pis, quarter_pis)
    p = b.select(is_left, -p, p)
    return b.copysign(_add_quarter_pis(b, quarter_pis, p), y)


def _reduced_asin(b: FormulaBuilder, x: Value) -> tuple[Value, Value]:
    """Return (a > 1/2, p) for a = |x|; p is asin a up to 1/2, else asin sqrt((1 - a) / 2)."""
    a = b.abs(x)
    above_half = a > 0.5
    z = b.select(above_half, b.fma(a, -0.5, 0.5), a * a)
    s = b.select(above_half, b.intrinsic("sqrt", z), a)
    return above_half, b.fma(s * z, b.horner(z, ASIN[x.scalar]), s)


def _atan_ratio(b: FormulaBuilder, steep: Value, low: Value, high: Value) -> tuple[Value, Value]:
    """Return atan(low / high) as a multiple of pi/4 and a rest; if `steep`, pi/2 minus that."""
    above_tan_pi_8 = low > high * math.tan(math.pi / 8)
    t = b.select(above_tan_pi_8, low - high, low) / b.select(above_tan_pi_8, low + high, high)
    z = t * t
    p = b.fma(t * z, b.horner(z, ATAN[t.scalar]), t)
    zero = t.const(0.0)
    quarter_pis = b.select(above_tan_pi_8, t.const(1.0), b.select(steep, t.const(2.0), zero))
    return quarter_pis, b.select(steep, -p, p)


def _add_quarter_pis(b: FormulaBuilder, quarter_pis: Value, p: Value) -> Value:
    """Return p plus a multiple of pi/4."""
    high, low = HALF_PI[p.scalar]
    return b.fma(quarter_pis, high / 2, b.fma(quarter_pis, low / 2, p))


HALF_PI = {
    "float": (1.5707963705062866, -4.371138828673793e-08),
    "double": (1.5707963267948966, 6.123233995736766e-17),
}
ASIN = {  # (asin r - r) / r^3 in r^2, errors 2^-27.6, 2^-59.8 of asin r
    "float": (
        0.16666753590106964,
        0.07495231926441193,
        0.0454784519970417,
        0.0241403691470623,
        0.042231664061546326,
    ),
    "double": (
        0.16666666666666763,
        0.07499999999970126,
        0.044642857175260744,
        0.030381942676432277,
        0.02237221587510018,
        0.01735159602212287,
        0.013981012669951616,
        0.01139733774005375,
        0.010789089320399545,
        0.0036729908796193024,
        0.021788852755419735,
        -0.02111440731518195,
        0.03270085253343862,
    ),
}
ATAN = {  # (atan r - r) / r^3 in r^2, errors 2^-30.4, 2^-59.3 of atan r
    "float": (
        -0.3333331346511841,
        0.1999843418598175,
        -0.142427459359169,
        0.10587397962808609,
        -0.06060608848929405,
    ),
    "double": (
        -0.33333333333333187,
        0.19999999999949758,
        -0.14285714279791578,
        0.1111111076236996,
        -0.09090897129685918,
        0.07692048697040445,
        -0.0666296954299834,
        0.058468867236490314,
        -0.050346882472928386,
        0.0379449506489919,
        -0.01777387442768993,
    ),
}
