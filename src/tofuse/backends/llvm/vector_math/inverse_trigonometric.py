"""Inverse trigonometric functions: asin, acos, atan, atan2.

asin uses asin a = pi/2 - 2 asin sqrt((1 - a) / 2) above 1/2 (fdlibm, e_asin.c); atan folds its
operand into [0, 1] and, above tan(pi/8), takes pi/4 off, as Cephes' atanf.c does, with one division
for both.
Polynomials are minimax (Remez exchange in 220-bit arithmetic), then rounded to the format.
"""

import math

from tofuse.backends.llvm.vector_math.formula_builder import Builder, Value


def asin(b: Builder, x: Value) -> Value:
    high, low = HALF_PI[x.scalar]
    big, p = _folded_asin(b, x)
    return b.copysign(b.select(big, b.fma(p, -2.0, low) + high, p), x)


def acos(b: Builder, x: Value) -> Value:
    """pi/2 - asin x up to 1/2; above 2 p, below -1/2 pi - 2 p."""
    high, low = HALF_PI[x.scalar]
    big, p = _folded_asin(b, x)
    negative = x.negative
    quarters = b.select(big, b.select(negative, x.like(2.0), x.like(0.0)), x.like(1.0))
    p = b.select(big, p + p, -p)
    p = b.flip_sign(p, x.sign)
    return b.fma(quarters, high, b.fma(quarters, low, p))


def atan(b: Builder, x: Value) -> Value:
    a = b.abs(x)
    steep = a > 1.0
    eighths, p = _ratio(b, steep, b.select(steep, 1.0, a), b.select(steep, a, 1.0))
    return b.copysign(_angle(b, eighths, p), x)


def atan2(b: Builder, y: Value, x: Value) -> Value:
    rise, run = b.abs(y), b.abs(x)
    steep = rise > run
    low, high = b.select(steep, run, rise), b.select(steep, rise, run)
    far = high > x.format.largest * 2.0**-20
    scale = b.select(far, x.like(2.0**-20), 1.0)  # the sum of both is not to overflow
    low, high = low * scale, high * scale
    both = low.equals(math.inf) & high.equals(math.inf)
    low, high = b.select(both, 1.0, low), b.select(both, 1.0, high)
    high = b.select(high.equals(0.0), 1.0, high)
    eighths, p = _ratio(b, steep, low, high)
    left = x.negative
    eighths = b.select(left, 4.0 - eighths, eighths)
    p = b.select(left, -p, p)
    return b.copysign(_angle(b, eighths, p), y)


def _folded_asin(b: Builder, x: Value) -> tuple[Value, Value]:
    """(a > 1/2, p): p = asin a up to 1/2, else asin sqrt((1 - a) / 2), for a = |x|."""
    a = b.abs(x)
    big = a > 0.5
    z = b.select(big, b.fma(a, -0.5, 0.5), a * a)
    s = b.select(big, b.sqrt(z), a)
    return big, b.fma(s * z, b.horner(z, ASIN[x.scalar]), s)


def _ratio(b: Builder, steep: Value, low: Value, high: Value) -> tuple[Value, Value]:
    """atan(low / high), of its complement to pi/2 if `steep`, as a multiple of pi/4 and a rest."""
    big = low > high * math.tan(math.pi / 8)
    t = b.select(big, low - high, low) / b.select(big, low + high, high)
    z = t * t
    p = b.fma(t * z, b.horner(z, ATAN[t.scalar]), t)
    none = t.like(0.0)
    eighths = b.select(big, t.like(1.0), b.select(steep, t.like(2.0), none))
    return eighths, b.select(steep, -p, p)


def _angle(b: Builder, eighths: Value, p: Value) -> Value:
    high, low = HALF_PI[p.scalar]
    return b.fma(eighths, high / 2, b.fma(eighths, low / 2, p))


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
