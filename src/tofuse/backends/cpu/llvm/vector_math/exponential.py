"""Exponential functions: exp, exp2, expm1, sinh, cosh, tanh, sigmoid.

All reduce x = n ln 2 + r with |r| <= ln 2 / 2 (Cody and Waite, "Software Manual for the Elementary
Functions", 1980, chapter 6; two terms suffice, as fma rounds once) and scale by 2^n. Polynomials
are minimax (Remez exchange in 220-bit arithmetic), then rounded to the format.
"""

import math
from dataclasses import dataclass

from tofuse.backends.cpu.llvm.vector_math.formula_builder import FormulaBuilder, Value

LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class ExpTable:
    """Constants of one format. Below `low` of a range the result is 0, above `high` it is inf."""

    exp_range: tuple[float, float]
    exp2_range: tuple[float, float]
    expm1_range: tuple[float, float]  # -1 below; one more than exp's above, for sinh
    tanh_high: float  # tanh rounds to 1 above
    tiny: float  # expm1 rounds to x below
    exp: tuple[float, ...]  # (e^r - 1 - r) / r^2, relative to e^r
    exp2: tuple[float, ...]  # (2^f - 1) / f on [-1/2, 1/2], relative to 2^f
    expm1: tuple[float, ...]  # (e^r - 1 - r) / r^2, relative to e^r - 1


def exp(b: FormulaBuilder, x: Value) -> Value:
    return _exp(b, x, shift=0)


def exp2(b: FormulaBuilder, x: Value) -> Value:
    table = TABLES[x.scalar]
    low, high = table.exp2_range
    x, nonzero_lanes = _flush_underflow(b, b.clamp_max(x, high), low, log_scale=1.0)
    n, raw = round_to_integer(b, x, 1.0, 2 * x.format.bias)
    return scale(b, b.horner(x - n, (1.0, *table.exp2)), n, raw, nonzero_lanes)


def expm1(b: FormulaBuilder, x: Value) -> Value:
    table = TABLES[x.scalar]
    y = _quarter_expm1(b, x) * 4.0
    return b.select(b.abs(x) < table.tiny, x, y)


def sinh(b: FormulaBuilder, x: Value) -> Value:
    """Return (e + e / (e + 1)) / 2 with e = expm1(|x|); scaled, because e itself could overflow."""
    table = TABLES[x.scalar]
    half = _quarter_expm1(b, b.abs(x)) * 2.0
    bounded = b.clamp_max(half, 1.0 / table.tiny)  # against inf / inf
    y = half + bounded / b.fma(bounded, 2.0, 1.0)
    return b.select(b.abs(x) < table.tiny, x, b.copysign(y, x))


def cosh(b: FormulaBuilder, x: Value) -> Value:
    """Return h + 1 / (4 h) with h = e^|x| / 2."""
    _, high = TABLES[x.scalar].expm1_range
    half = _exp(b, b.clamp_max(b.abs(x), high), shift=1)
    return half + 0.25 / half


def tanh(b: FormulaBuilder, x: Value) -> Value:
    """Return e / (e + 2) with e = expm1(2 |x|)."""
    a = b.clamp_max(b.abs(x), TABLES[x.scalar].tanh_high)
    scale, small = _scaled_expm1(b, a + a, offset=0)
    e = b.fma(scale, small, scale - 1.0)
    return b.copysign(e / (e + 2.0), x)


def sigmoid(b: FormulaBuilder, x: Value) -> Value:
    """Return 1 / (1 + e^-x), or e^x / (1 + e^x) where x < 0, so that the tail keeps its digits."""
    e = _exp(b, -b.abs(x), shift=0)
    return b.select(x < 0.0, e, e.const(1.0)) / (e + 1.0)


def _exp(b: FormulaBuilder, x: Value, shift: int) -> Value:
    """Return e^x / 2^shift."""
    table = TABLES[x.scalar]
    low, high = table.exp_range
    bounded = b.clamp_max(x, high + shift)
    x, nonzero_lanes = _flush_underflow(b, bounded, low, log_scale=math.log(2))
    n, raw = round_to_integer(b, x, LOG2_E, 2 * x.format.bias - shift)
    r = _subtract_ln2(b, x, n)
    p = b.horner(r, (1.0, 1.0, *table.exp))
    return scale(b, p, n - shift if shift else n, raw, nonzero_lanes)


def _flush_underflow(
    b: FormulaBuilder, x: Value, low: float, log_scale: float
) -> tuple[Value, Value | None]:
    """Return the argument to compute with, and the lanes where the result is not 0 (None: all).

    Results for x below `low` are 0. Some processors take a hundred times as long to round to a
    subnormal number, and the masked elements of a softmax are there. So these lanes are masked if
    the processor has `scalef`; else x is clamped so that the factor 2^n is 0, which is so for n = x
    / log_scale = -2 bias.
    """
    if b.has_scalef(x.scalar):
        return x, b.compare("uge", x, low)  # true for nan
    return b.clamp_min(x, -2 * x.format.bias * log_scale), None


def _quarter_expm1(b: FormulaBuilder, x: Value) -> Value:
    """Return (e^x - 1) / 4, which is finite wherever sinh is."""
    low, high = TABLES[x.scalar].expm1_range
    scale, small = _scaled_expm1(b, b.clamp_min(b.clamp_max(x, high), low), offset=-2)
    return b.fma(scale, small, scale - 0.25)


def _scaled_expm1(b: FormulaBuilder, x: Value, offset: int) -> tuple[Value, Value]:
    """Return 2^(n + offset) and e^r - 1; 2^(n + offset) must be a normal number."""
    table = TABLES[x.scalar]
    n, raw = round_to_integer(b, x, LOG2_E, x.format.bias + offset)
    r = _subtract_ln2(b, x, n)
    remainder_expm1 = b.fma(r * r, b.horner(r, table.expm1), r)
    return b.as_float(raw << x.format.mantissa), remainder_expm1


def round_to_integer(
    b: FormulaBuilder, x: Value, factor: float, offset: int
) -> tuple[Value, Value]:
    """Return n = rint(x * factor), and an integer whose low bits are n + offset.

    Adding 1.5 * 2^mantissa leaves the integer in the low bits of the sum.
    """
    shifter = 1.5 * 2.0**x.format.mantissa + offset
    total = x + shifter if factor == 1.0 else b.fma(x, factor, shifter)
    return total - shifter, total.bits


def _subtract_ln2(b: FormulaBuilder, x: Value, n: Value) -> Value:
    """Return x - n ln 2."""
    high, low = x.format.ln2
    return b.fma(n, -low, b.fma(n, -high, x))


def scale(
    b: FormulaBuilder, p: Value, n: Value, raw: Value, nonzero_lanes: Value | None = None
) -> Value:
    """Return p * 2^n, rounded once if that is subnormal; `raw` is n + 2 bias as an integer.

    With AVX-512 this is one instruction, which gives 0 outside `nonzero_lanes`. Otherwise p is
    multiplied by two factors, each normal, or 0 for the least n.
    """
    if b.has_scalef(p.scalar):
        return b.scalef(p, n, nonzero_lanes)
    half = raw >> 1
    mantissa = p.format.mantissa
    return p * b.as_float(half << mantissa) * b.as_float((raw - half) << mantissa)


TABLES = {
    "float": ExpTable(
        exp_range=(-104.0, 89.0),
        exp2_range=(-152.0, 129.0),
        expm1_range=(-20.0, 89.7),
        tanh_high=10.0,
        tiny=2.0**-25,
        exp=(
            0.4999999403953552,
            0.1666651964187622,
            0.04166839271783829,
            0.008368768729269505,
            0.0013814487028867006,
        ),
        exp2=(
            0.6931471824645996,
            0.24022647738456726,
            0.05550331994891167,
            0.00961843691766262,
            0.0013399003073573112,
            0.00015353695198427886,
        ),
        expm1=(
            0.4999999701976776,
            0.1666654348373413,
            0.04166720062494278,
            0.00836658664047718,
            0.001388269360177219,
        ),
    ),
    "double": ExpTable(
        exp_range=(-746.0, 710.0),
        exp2_range=(-1080.0, 1025.0),
        expm1_range=(-40.0, 710.6),
        tanh_high=20.0,
        tiny=2.0**-54,
        exp=(
            0.5,
            0.16666666666666682,
            0.041666666666666095,
            0.008333333333316961,
            0.0013888888889115837,
            0.00019841269896592642,
            2.480158692648794e-05,
            2.7557234633501514e-06,
            2.7557581640949014e-07,
            2.511212194257169e-08,
            2.0826802627997797e-09,
        ),
        exp2=(
            0.6931471805599453,
            0.24022650695910072,
            0.05550410866482169,
            0.009618129107628328,
            0.0013333558146392428,
            0.00015403530393642994,
            1.5252733854599317e-05,
            1.3215486593587017e-06,
            1.0178051813736445e-07,
            7.054974784717326e-09,
            4.4565914173175543e-10,
            2.562523987590055e-11,
        ),
        expm1=(
            0.5,
            0.16666666666666677,
            0.041666666666666505,
            0.008333333333321608,
            0.0013888888888963157,
            0.00019841269886205026,
            2.480158717127301e-05,
            2.755724410667837e-06,
            2.755740345619211e-07,
            2.5109080623283416e-08,
            2.08751643841713e-09,
        ),
    ),
}
