"""Trigonometric functions: sin, cos, tan.

Sine and cosine subtract a multiple of pi (tangent: of pi/2) in three parts (Cody and Waite,
"Software Manual for the Elementary Functions", 1980, chapter 8), so that one polynomial on [-pi/2,
pi/2] and a sign serve both. Above `LIMIT`, under a branch, the multiple is computed from as many
bits of 1/pi as the format needs (Payne and Hanek, "Radian reduction for trigonometric functions",
SIGNUM 1983). Polynomials are minimax (Remez exchange in 220-bit arithmetic), then rounded to the
format.
"""

import math

from tofuse.backends.cpu.llvm.ir_text import float_literal
from tofuse.backends.cpu.llvm.vector_math.formula_builder import FormulaBuilder, Value


def sin(b: FormulaBuilder, x: Value) -> Value:
    return _signed_sine(b, *_reduce_argument(b, x, per_pi=1, shift=0.0))


def cos(b: FormulaBuilder, x: Value) -> Value:
    """Return cos x = (-1)^(n + 1) sin r for x = (n + 1/2) pi + r.

    Where 1 is the nearest number it is exact, because x cos x - sin x cancels (gradient of sinc).
    """
    y = _signed_sine(b, *_reduce_argument(b, x, per_pi=1, shift=0.5))
    return b.select(b.abs(x) < 2.0 ** -((x.format.mantissa + 1) // 2), 1.0, y)


def tan(b: FormulaBuilder, x: Value) -> Value:
    """Return tan r for x = n pi/2 + r with even n, else -1 / tan r."""
    r, odd = _reduce_argument(b, x, per_pi=2, shift=0.0)
    z = r * r
    t = b.fma(r * z, b.horner(z, TAN[x.scalar]), r)
    y = b.select(b.compare("slt", odd, 0), -1.0 / t, t)
    return b.select(x.equals(0.0), x, y)  # tan(-0) is -0


def _signed_sine(b: FormulaBuilder, r: Value, sign: Value) -> Value:
    z = r * r
    y = b.fma(r * z, b.horner(z, SIN[r.scalar]), r)
    return b.flip_sign(b.copysign(y, r), sign)  # copysign: sin(-0) is -0


def _reduce_argument(b: FormulaBuilder, x: Value, per_pi: int, shift: float) -> tuple[Value, Value]:
    """Return r = x - (n + shift) pi / per_pi, and a sign bit: n is odd (with a shift: even)."""
    form = x.format
    odd = 1.0 if shift else 0.0
    shifter = 1.5 * 2.0**form.mantissa + odd
    scaled = b.fma(x, per_pi * INVERSE_PI, -shift) if shift else x * (per_pi * INVERSE_PI)
    total = scaled + shifter
    n = total - shifter + shift if shift else total - shifter
    first, second, third = (-part / per_pi for part in PI_PARTS[x.scalar])
    exact = b.fma(n, first, x)
    if per_pi == 2:  # tangent has a pole where r is small, so it needs r's rounding error
        product, lost = b.two_product(n, second)
        r, error = b.two_sum(exact, product)
        r = r + (error + b.fma(n, third, lost))
    else:
        r = b.fma(n, third, b.fma(n, second, exact))
    common = (r, total.bits << (form.bits - 1))
    is_large = b.abs(x) > LIMIT[x.scalar]

    def slow() -> tuple[Value, ...]:
        name = f"reduce_angle.{per_pi}.{shift:g}"
        precise = b.call_rarely(
            name, x, lambda own, angle: _reduce_payne_hanek(own, angle, per_pi, shift)
        )
        return tuple(b.select(is_large, e, c) for e, c in zip(precise, common, strict=True))

    r, sign = b.branch_if_any(is_large, common, slow)
    return r, sign


def _reduce_payne_hanek(
    b: FormulaBuilder, x: Value, per_pi: int, shift: float
) -> tuple[Value, Value]:
    """Return the same, exact for any finite x and nan for inf; computed in binary64."""
    x_double = x if x.scalar == "double" else b.widen(x)
    count = TABLE_TERMS[x.scalar]
    b.f.declarations[INVERSE_PI_TABLE] = _inverse_pi_table()
    scaled = x_double * 2.0**-TABLE_SCALE

    def step(term: Value, sums: tuple[Value, ...]) -> tuple[Value, ...]:
        for part in b.two_product(scaled, term):
            sums = _accumulate(b, sums, _modulo_2(b, part))
        return sums

    start = (x_double.const(0.0),) * SUM_LENGTH[x.scalar]
    sums = b.fold_table(INVERSE_PI_TABLE, count, start, step)
    first, second, *others = (s * float(per_pi) for s in sums)
    shifter = 1.5 * 2.0**52 + (1.0 if shift else 0.0)
    total = (first - shift) + shifter
    high, tail = b.two_sum(first - ((total - shifter) + shift), second)
    for other in others:
        tail = tail + other
    pi, pi_low = 3.141592653589793 / per_pi, 1.2246467991473532e-16 / per_pi
    r, low = b.two_product(high, pi)
    r = r + b.fma(high, pi_low, b.fma(tail, pi, low))
    sign = total.bits
    if x.scalar == "float":
        r, sign = b.narrow(r), b.cast("trunc", sign, "i32")
    return r, sign << (x.format.bits - 1)


def _accumulate(b: FormulaBuilder, sums: tuple[Value, ...], term: Value) -> tuple[Value, ...]:
    """Add a term to an unevaluated sum; each number takes the rounding errors of the one before."""
    exact = []
    for total in sums[:-1]:
        total, term = b.two_sum(total, term)
        exact.append(total)
    return (*exact, sums[-1] + term)


def _modulo_2(b: FormulaBuilder, x: Value) -> Value:
    """Return x minus the nearest multiple of 2."""
    return b.fma(b.intrinsic("rint", x * 0.5), -2.0, x)


def _inverse_pi_table() -> str:
    """Return the text of a global: 1/pi as a sum of doubles, scaled against underflow."""
    terms = TABLE_TERMS["double"]
    words = []
    for i in range(1, terms + 1):
        word = (INVERSE_PI_DIGITS >> 53 * (terms - i)) & (2**53 - 1)
        words.append("double " + float_literal(math.ldexp(word, TABLE_SCALE - 53 * i), "double"))
    return f"{INVERSE_PI_TABLE} = internal constant [{terms} x double] [{', '.join(words)}]"


INVERSE_PI = 0.3183098861837907
LIMIT = {"float": 2.0**17, "double": 2.0**24}  # up to here n * (first part of pi) is exact
PI_PARTS = {  # each truncated, so that all are positive and x - n * part keeps the sign of -0
    "float": (3.141592502593994, 1.5099578831723193e-07, 1.078060505991553e-14),
    "double": (3.141592653589793, 1.224646799147353e-16, 2.1657133478438278e-32),
}
INVERSE_PI_TABLE = "@tofuse.inverse_pi"
TABLE_SCALE = 200
TABLE_TERMS = {"float": 4, "double": 22}  # largest exponent + twice the precision, in 53-bit words
SUM_LENGTH = {"float": 2, "double": 3}  # a double comes within 2^-61 of a multiple of pi/2
INVERSE_PI_DIGITS = int(  # floor(2^(53 * 22) / pi)
    "145f306dc9c882a53f84eafa3ea69bb81b6c52b3278872083fca2c757bd778ac36e48dc74849ba5c"
    "00c925dd413a32439fc3bd63962534e7dd1046bea5d768909d338e04d68befc827323ac7306a673e"
    "93908bf177bf250763ff12fffbc0b301fde5e2316b414da3eda6cfd9e4f96136e9e8c7ecd3cbfd45"
    "aea4f758fd7cbe2f67a0e73ef14a525d4d7f6bf623f1aba10ac0",
    16,
)
SIN = {  # (sin r - r) / r^3 in r^2; binary32 rounded so that cos 0 is 1 and nothing exceeds it
    "float": (
        -0.16666662693023682,
        0.008333099074661732,
        -0.00019809429068118334,
        2.601582309580408e-06,
    ),
    "double": (
        -0.16666666666666666,
        0.008333333333333182,
        -0.0001984126984120465,
        2.75573192103368e-06,
        -2.5052106798021195e-08,
        1.6058935877894222e-10,
        -7.642890207396748e-13,
        2.720092262658463e-15,
    ),
}
TAN = {  # (tan r - r) / r^3 in r^2, errors 2^-29.3, 2^-59.5 of tan r
    "float": (
        0.3333335220813751,
        0.13332559168338776,
        0.05407201498746872,
        0.021218191832304,
        0.011005320586264133,
        -0.00012958435399923474,
        0.004486295860260725,
    ),
    "double": (
        0.333333333333334,
        0.1333333333332289,
        0.05396825397423242,
        0.02186948836304213,
        0.008863238507321286,
        0.00359209479432704,
        0.001456088644064704,
        0.0005886501926730772,
        0.00024451336740115314,
        8.161299375569749e-05,
        7.075875336834972e-05,
        -3.0099435231565632e-05,
        5.235736353071569e-05,
        -2.6113911117705393e-05,
        1.0207739120136845e-05,
    ),
}
