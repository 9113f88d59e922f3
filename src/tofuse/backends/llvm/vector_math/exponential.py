"""The exponential and what is made of it: exp, exp2, expm1, sinh, cosh, tanh, sigmoid.

All reduce x = n ln 2 + r with |r| <= ln 2 / 2 (Cody and Waite, "Software Manual for the Elementary
Functions", 1980, chapter 6; two terms suffice, as fma rounds once) and scale by 2^n. Polynomials
are minimax (Remez exchange in 220-bit arithmetic), then rounded to the format.
"""

import math
from dataclasses import dataclass

from tofuse.backends.llvm.vector_math.formula_builder import Builder, Value

LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class ExpTable:
    """What depends on the format. Beyond `low` and `high` the results are 0 and inf."""

    ln2: tuple[float, float]
    exp_range: tuple[float, float]
    exp2_range: tuple[float, float]
    expm1_range: tuple[float, float]  # -1 below; one more than exp above, for sinh
    tanh_high: float  # tanh rounds to 1 above
    tiny: float  # expm1 rounds to x below
    exp: tuple[float, ...]  # (e^r - 1 - r) / r^2, relative to e^r
    exp2: tuple[float, ...]  # (2^f - 1) / f on [-1/2, 1/2], relative to 2^f
    expm1: tuple[float, ...]  # (e^r - 1 - r) / r^2, relative to e^r - 1


def exp(b: Builder, x: Value) -> Value:
    return _exp(b, x, less=0)


def exp2(b: Builder, x: Value) -> Value:
    table = TABLES[x.scalar]
    low, high = table.exp2_range
    x, seen = _above(b, b.at_most(x, high), low, per=1.0)
    n, raw = nearest(b, x, 1.0, 2 * x.format.bias)
    return scale(b, b.horner(x - n, (1.0, *table.exp2)), n, raw, seen)


def expm1(b: Builder, x: Value) -> Value:
    table = TABLES[x.scalar]
    y = _quarter_expm1(b, x) * 4.0
    return b.select(b.abs(x) < table.tiny, x, y)


def sinh(b: Builder, x: Value) -> Value:
    """(e + e / (e + 1)) / 2 with e = expm1(|x|); e itself could overflow."""
    table = TABLES[x.scalar]
    half = _quarter_expm1(b, b.abs(x)) * 2.0
    bounded = b.at_most(half, 1.0 / table.tiny)  # against inf / inf
    y = half + bounded / b.fma(bounded, 2.0, 1.0)
    return b.select(b.abs(x) < table.tiny, x, b.copysign(y, x))


def cosh(b: Builder, x: Value) -> Value:
    """h + 1 / (4 h) with h = e^|x| / 2."""
    _, high = TABLES[x.scalar].expm1_range
    half = _exp(b, b.at_most(b.abs(x), high), less=1)
    return half + 0.25 / half


def tanh(b: Builder, x: Value) -> Value:
    """e / (e + 2) with e = expm1(2 |x|)."""
    a = b.at_most(b.abs(x), TABLES[x.scalar].tanh_high)
    scale, small = _expm1_parts(b, a + a, offset=0)
    e = b.fma(scale, small, scale - 1.0)
    return b.copysign(e / (e + 2.0), x)


def sigmoid(b: Builder, x: Value) -> Value:
    """1 / (1 + e^-x), as e^x / (1 + e^x) where x < 0, so that tails keep their digits."""
    e = _exp(b, -b.abs(x), less=0)
    return b.select(x < 0.0, e, e.like(1.0)) / (e + 1.0)


def _exp(b: Builder, x: Value, less: int) -> Value:
    """e^x / 2^less."""
    table = TABLES[x.scalar]
    low, high = table.exp_range
    x, seen = _above(b, b.at_most(x, high + less), low, per=math.log(2))
    n, raw = nearest(b, x, LOG2_E, 2 * x.format.bias - less)
    r = _minus_ln2(b, x, n)
    return scale(b, b.horner(r, (1.0, 1.0, *table.exp)), n - less if less else n, raw, seen)


def _above(b: Builder, x: Value, low: float, per: float) -> tuple[Value, Value | None]:
    """What is computed for x, and where it is the result; 0 is elsewhere, where x is below `low`.

    A processor that rounds to a number below the normal ones may take a hundred times as long, and
    what is masked in a softmax lies there. So it is left out, or multiplied by a 2^n that is 0:
    n is -2 bias where x is that many `per`.
    """
    if b.whole_scalef(x.scalar):
        return x, b.compare("uge", x, low)  # of a nan too
    return b.at_least(x, -2 * x.format.bias * per), None


def _quarter_expm1(b: Builder, x: Value) -> Value:
    """(e^x - 1) / 4, which is finite wherever sinh is."""
    low, high = TABLES[x.scalar].expm1_range
    scale, small = _expm1_parts(b, b.at_least(b.at_most(x, high), low), offset=-2)
    return b.fma(scale, small, scale - 0.25)


def _expm1_parts(b: Builder, x: Value, offset: int) -> tuple[Value, Value]:
    """2^(n + offset) and e^r - 1; 2^(n + offset) has to be a normal number."""
    table = TABLES[x.scalar]
    n, raw = nearest(b, x, LOG2_E, x.format.bias + offset)
    r = _minus_ln2(b, x, n)
    small = b.fma(r * r, b.horner(r, table.expm1), r)
    return b.as_float(raw << x.format.mantissa), small


def nearest(b: Builder, x: Value, factor: float, offset: int) -> tuple[Value, Value]:
    """n = rint(x * factor), and an integer whose low bits are n + offset.

    Adding 1.5 * 2^mantissa leaves an integer in the low bits of the sum.
    """
    shifter = 1.5 * 2.0**x.format.mantissa + offset
    total = x + shifter if factor == 1.0 else b.fma(x, factor, shifter)
    return total - shifter, total.bits


def _minus_ln2(b: Builder, x: Value, n: Value) -> Value:
    high, low = TABLES[x.scalar].ln2
    return b.fma(n, -low, b.fma(n, -high, x))


def scale(b: Builder, p: Value, n: Value, raw: Value, seen: Value | None = None) -> Value:
    """p * 2^n, also given as `raw` = n + 2 bias, rounded once where that is subnormal.

    One instruction of AVX-512, which gives 0 where it is not `seen`; elsewhere two factors, each
    normal, or 0 for the least n.
    """
    if b.whole_scalef(p.scalar):
        return b.scalef(p, n, seen)
    half = raw >> 1
    mantissa = p.format.mantissa
    return p * b.as_float(half << mantissa) * b.as_float((raw - half) << mantissa)


TABLES = {
    "float": ExpTable(
        ln2=(0.6931471824645996, -1.9046542121259336e-09),
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
        ln2=(0.6931471805599453, 2.3190468138462996e-17),
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
