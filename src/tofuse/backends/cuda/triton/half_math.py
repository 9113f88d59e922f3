"""Triton functions for values that are rounded to half precision, which need few instructions.

Errors are at most an eighth of the rounding: 2**-15 of the result, and 2**-12 for the sines of
bfloat16. Results below the smallest normal number may be zero. Coefficients have the least maximum
relative error, by reweighted least squares. Sines reduce their argument by multiples of pi (Cody
and Waite, "Software Manual for the Elementary Functions", 1980). A block with an argument beyond
2**20 calls libdevice for it. The error function is `1 - 2**-p(x)`, as in Abramowitz and Stegun,
7.1.28.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tofuse.ir.types import DType

SINES = ("sin", "cos")  # they take a block, whose largest argument they look for


def half_function(op: str, rounds_to: DType) -> str:
    """Return the name of the function for an op of `ops.table.ELEMENTARY`."""
    return f"_{op}_{rounds_to.value if op in SINES else 'half'}"


_LOG2_E = 1.4426950408889634
_SIN_F16 = (0.999998927116394, -0.16665463149547577, 0.0083107715472579, -0.00018453571829013526)
_SIN_BF16 = (0.9998828172683716, -0.16592258214950562, 0.007584244012832642)
_TANH = (0.999999463558197, -0.33326318860054016, 0.13190296292304993, -0.04440221190452576)
_ERF = (1.1283667087554932, -0.3752391040325165, 0.10326728969812393)
_LOG_ERFC = (
    1.6279082298278809,
    0.9183759689331055,
    0.1489384025335312,
    -0.029798615723848343,
    0.002996494062244892,
)
_PI_PARTS = (3.1415927410125732, -8.742277657347586e-08)
_ROUNDER = 12582912.0  # 1.5 * 2**23: the sum has the nearest integer in its low bits
_LIMIT = 1048576.0  # of arguments whose multiple of pi is exact: 2**20


def _horner(variable: str, coefficients: Sequence[float]) -> str:
    """Return a polynomial, from its lowest coefficient."""
    text = repr(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        text = f"tl.fma({variable}, {text}, {c!r})"
    return text


def _sine(name: str, library: str, half: float, coefficients: Sequence[float]) -> str:
    """Return `sin(x)`, or with a half `cos(x)`: the sine of what exceeds a multiple of pi.

    The sign flips where the low bit is set. For a half, `large` is greater by one, so that it is.
    """
    turns, rounder = f"x * {1 / math.pi!r}", _ROUNDER
    if half:
        turns, rounder = f"tl.fma(x, {1 / math.pi!r}, {-half!r})", _ROUNDER + 1
    return f"""\
def {name}(x):
    large = {turns} + {rounder}
    k = large - {rounder}{f" + {half!r}" if half else ""}
    r = tl.fma(k, {-_PI_PARTS[1]!r}, tl.fma(k, {-_PI_PARTS[0]!r}, x))
    square = r * r
    sine = r * ({_horner("square", coefficients)})
    flip = large.to(tl.int32, bitcast=True) << 31
    result = (sine.to(tl.int32, bitcast=True) ^ flip).to(tl.float32, bitcast=True)
    if tl.max(tl.abs(x)) > {_LIMIT}:
        result = tl.where(tl.abs(x) > {_LIMIT}, libdevice.{library}(x), result)
    return result
"""


HALF_DEFINITIONS = {
    "_sin_f16": _sine("_sin_f16", "sin", 0.0, _SIN_F16),
    "_cos_f16": _sine("_cos_f16", "cos", 0.5, _SIN_F16),
    "_sin_bf16": _sine("_sin_bf16", "sin", 0.0, _SIN_BF16),
    "_cos_bf16": _sine("_cos_bf16", "cos", 0.5, _SIN_BF16),
    "_exp_half": f"""\
def _exp_half(x):
    return tl.exp2(x * {_LOG2_E})
""",
    "_sigmoid_half": f"""\
def _sigmoid_half(x):
    return 1.0 / (1.0 + tl.exp2(x * {-_LOG2_E}))
""",
    "_tanh_half": f"""\
def _tanh_half(x):
    square = x * x
    near = x * ({_horner("square", _TANH)})
    far = 1.0 - 2.0 / (1.0 + tl.exp2(tl.abs(x) * {2 * _LOG2_E}))
    return tl.where(square < 0.25, near, libdevice.copysign(far, x))
""",
    "_erf_half": f"""\
def _erf_half(x):
    square = x * x
    near = x * ({_horner("square", _ERF)})
    size = tl.abs(x)
    far = 1.0 - tl.exp2(-size * ({_horner("size", _LOG_ERFC)}))
    return tl.where(square < 0.25, near, libdevice.copysign(far, x))
""",
}
