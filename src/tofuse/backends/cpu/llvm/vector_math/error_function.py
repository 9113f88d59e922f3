"""The error function and its complement: erf, erfc.

erfc a = e^(-a^2) q(t) / (1 + 2 a) with t = (a - K) / (a + K) maps all a >= 0 to one interval
(Shepherd and Laframboise, "Chebyshev approximation of (1 + 2x) exp(x^2) erfc x", Math. Comp. 36,
1981).
Polynomials are minimax (Remez exchange in 220-bit arithmetic), then rounded to the format.
"""

from tofuse.backends.cpu.llvm.vector_math.exponential import exp
from tofuse.backends.cpu.llvm.vector_math.formula_builder import FormulaBuilder, Value


def erf(b: FormulaBuilder, x: Value) -> Value:
    a = b.abs(x)
    if x.scalar == "float":
        return b.copysign(_erf_f32(b, a), x)
    y = b.select(a < 1.0, _erf_small_f64(b, a), 1.0 - _erfc_f64(b, a))
    return b.copysign(y, x)


def erfc(b: FormulaBuilder, x: Value) -> Value:
    """Return the complement; binary32 is computed in binary64, which keeps the digits of a^2."""
    if x.scalar == "float":
        wide = b.widen(x)
        y = _erfc_f32(b, b.abs(wide))
        return b.narrow(b.select(wide < 0.0, 2.0 - y, y))
    a = b.abs(x)
    y = _erfc_f64(b, a)
    y = b.select(x < 0.0, 2.0 - y, y)
    return b.select(a < 0.5, 1.0 - _erf_small_f64(b, x), y)


def _erf_f32(b: FormulaBuilder, a: Value) -> Value:
    small = b.fma(b.horner(a * a, ERF_SMALL_F32), a, a)
    y = b.select(a < 1.0, small, b.horner(a - ERF_CENTRE, ERF_LARGE_F32))
    return b.select(a > ERF_ONE_F32, 1.0, y)


def _erf_small_f64(b: FormulaBuilder, x: Value) -> Value:
    return x * b.horner(x * x, ERF_F64)


def _erfc_f32(b: FormulaBuilder, a: Value) -> Value:
    """Return erfc of a binary32 number a >= 0, given and computed in binary64."""
    a = b.clamp_max(a, 10.6)
    t = (a - 3.0) / (a + 3.0)
    return exp(b, -(a * a)) * b.horner(t, ERFC_F32) / b.fma(a, 2.0, 1.0)


def _erfc_f64(b: FormulaBuilder, a: Value) -> Value:
    """Return erfc a for a >= 0, with e^-(h + l) = e^-h (1 - l) for the exact square h + l."""
    a = b.clamp_max(a, 28.0)
    high, low = b.two_product(a, a)
    t = (a - 4.0) / (a + 4.0)
    q = b.horner(t, ERFC_F64) / b.fma(a, 2.0, 1.0)
    return exp(b, -high) * b.fma(q, -low, q)


ERF_CENTRE = 2.465
ERF_ONE_F32 = 3.92  # rounds to 1 above
ERF_SMALL_F32 = (  # erf(a) / a - 1 in a^2 on [0, 1], error 2^-29.6
    0.12837916709551256,
    -0.3761262595653534,
    0.1128358542919159,
    -0.026853810995817184,
    0.005188325885683298,
    -0.000801017798949033,
    7.85380689194426e-05,
)
ERF_LARGE_F32 = (  # erf(u + ERF_CENTRE), u from -1.466 to 1.466, error 2^-25.0
    0.9995098114013672,
    0.0025915680453181267,
    -0.0063897548243403435,
    0.009636592119932175,
    -0.009735935367643833,
    0.006708994507789612,
    -0.0029472035821527243,
    0.00047753864782862365,
    0.0003777605597861111,
    -0.0002990552457049489,
    5.2981351473135874e-05,
    2.4872528229025193e-05,
    -9.11289043870056e-06,
)
ERF_F64 = (  # erf(a) / a in a^2 on [0, 1], error 2^-62.7
    1.1283791670955126,
    -0.3761263890318375,
    0.11283791670954858,
    -0.026866170645072938,
    0.00522397762478116,
    -0.0008548326978754425,
    0.00012055331037234705,
    -1.4925593513145789e-05,
    1.6460972896973144e-06,
    -1.6350025909660375e-07,
    1.465788362525826e-08,
    -1.136567797622692e-09,
    5.945278412029379e-11,
)
ERFC_F32 = (  # (1 + 2 a) e^(a^2) erfc a, K = 3, a up to 10.6, error 2^-28.5
    1.2530080595311628,
    -0.13562114240111933,
    -0.04756244578940586,
    0.12964647340556265,
    -0.11927014713413854,
    0.06829595119783069,
    -0.02380210483521068,
    0.0025627990797895263,
    0.002008418069122763,
    -0.0007655496353612892,
    -0.0002632455286851634,
)
ERFC_F64 = (  # the same, K = 4, a up to 28, error 2^-61.2
    1.2329951186255526,
    -0.13962111684056253,
    0.015379652102620074,
    0.06809705425469306,
    -0.10103906603632726,
    0.09373283499833303,
    -0.06633036581160086,
    0.037167515537872876,
    -0.01619773406631563,
    0.005031969972449556,
    -0.0007577732202227319,
    -0.00019925664559337567,
    0.0001506213375242954,
    -2.439948838858324e-05,
    -1.1220978011798938e-05,
    5.710704772346186e-06,
    2.9178575055176614e-07,
    -8.276082202719656e-07,
    7.68813949071562e-08,
    1.130674937924271e-07,
    -1.9032631303920028e-08,
    -1.644196658818343e-08,
    1.6987321867961752e-09,
    2.0473684783980882e-09,
    2.7178683953322755e-10,
)
