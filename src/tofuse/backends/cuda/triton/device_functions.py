"""The library of Triton functions that kernels call, as text."""

from __future__ import annotations

import re

from tofuse.backends.cuda.triton.half_math import HALF_DEFINITIONS
from tofuse.cost.thresholds import MAX_MERGED_SUMS
from tofuse.ir.types import DType
from tofuse.ops.fp8 import FORMATS
from tofuse.ops.philox import MULTIPLIERS, ROUNDS, WEYL

IMPORTS = """\
import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice
"""


def module_header(text: str) -> str:
    """Return imports, and the functions that `text` calls, each after those that it calls."""
    needed: dict[str, None] = {}
    pending = [text]
    while pending:
        calls = re.findall(r"\b(_[a-z_0-9]+)\b", pending.pop())
        for name in dict.fromkeys(calls):
            if name in FUNCTIONS and name not in needed:
                needed[name] = None
                pending.append(FUNCTIONS[name])
    return IMPORTS + "".join(f"\n{_DECORATOR}{FUNCTIONS[n]}" for n in FUNCTIONS if n in needed)


def _fp8_encoder(dtype: DType) -> str:
    form = FORMATS[dtype]
    rounding = f"{form.fraction_bits}, {form.min_normal_exponent}"
    return f"""\
def _encode_{dtype.value}(x):
    return _encode_quarter(x, {rounding}, {form.overflow_start}, {form.overflow_byte})
"""


def _extremum(name: str, function: str, nan: str) -> str:
    return f"""\
def {name}(a, b):
    return tl.{function}(a, b{nan})
"""


def _best_position(name: str, better: str) -> str:
    return f"""\
def {name}(a, i, b, j):
    # nan beats all; of equals, the first
    better = (a {better} b) | ((a != a) & (b == b))
    same = (a == b) | ((a != a) & (b != b))
    first = better | (same & (i < j))
    return tl.where(first, a, b), tl.where(first, i, j)
"""


def _sums(count: int) -> str:
    a, b = ([f"{side}{k}" for k in range(count)] for side in "ab")
    added = ", ".join(f"{x} + {y}" for x, y in zip(a, b, strict=True))
    return f"""\
def _sum{count}({", ".join([*a, *b])}):
    return {added}
"""


_DECORATOR = "\n@triton.jit\n"

FUNCTIONS = {
    **HALF_DEFINITIONS,
    "_mul": """\
def _mul(a, b):
    return a * b
""",
    **{f"_sum{count}": _sums(count) for count in range(2, MAX_MERGED_SUMS + 1)},
    "_amax": _extremum("_amax", "maximum", ", propagate_nan=tl.PropagateNan.ALL"),
    "_amin": _extremum("_amin", "minimum", ", propagate_nan=tl.PropagateNan.ALL"),
    "_largest": _extremum("_largest", "maximum", ""),
    "_smallest": _extremum("_smallest", "minimum", ""),
    "_argmax": _best_position("_argmax", ">"),
    "_argmin": _best_position("_argmin", "<"),
    "_remainder": """\
def _remainder(a, b):
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)
""",
    "_floordiv": """\
def _floordiv(a, b):
    rest = a % b
    return a // b - ((rest != 0) & ((rest < 0) != (b < 0))).to(a.dtype)
""",
    "_float_remainder": """\
def _float_remainder(a, b):
    rest = libdevice.fmod(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)
""",
    "_divide": """\
def _divide(a, b):
    return (a.to(tl.float64) / b.to(tl.float64)).to(a.dtype)
""",
    "_float_floordiv": """\
def _float_floordiv(a, b):
    # c10::div_floor_floating
    rest = libdevice.fmod(a, b)
    quotient = _divide(a - rest, b)
    quotient = tl.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1.0, quotient)
    floor = libdevice.floor(quotient)
    floor = tl.where(quotient - floor > 0.5, floor + 1.0, floor)
    plain = _divide(a, b)
    floor = tl.where(quotient == 0, libdevice.copysign(plain * 0.0, plain), floor)
    return tl.where(b == 0, plain, floor)
""",
    "_encode_quarter": """\
def _encode_quarter(x, fraction: tl.constexpr, smallest: tl.constexpr, limit: tl.constexpr,
                    beyond: tl.constexpr):
    # a float of eight bits as PyTorch rounds it; see ops/fp8.py
    drop: tl.constexpr = 23 - fraction
    anchor: tl.constexpr = (smallest + drop) << 23
    raw = x.to(tl.int32, bitcast=True)
    size = raw & 0x7FFFFFFF
    odd = (size >> drop) & 1
    normal = (size + odd + ((1 << (drop - 1)) - 1 - ((smallest - 1) << 23))) >> drop
    shift = (size * 0 + anchor).to(tl.float32, bitcast=True)
    below = (size.to(tl.float32, bitcast=True) + shift).to(tl.int32, bitcast=True) - anchor
    found = tl.where(size < smallest << 23, below, normal)
    found = tl.where(size >= limit, beyond, found)
    found = tl.where(size > 255 << 23, 127, found)
    return (found | ((raw >> 24) & 128)).to(tl.uint8)
""",
    "_encode_f8e4m3": _fp8_encoder(DType.F8E4M3),
    "_encode_f8e5m2": _fp8_encoder(DType.F8E5M2),
    "_decode_f8e4m3": """\
def _decode_f8e4m3(byte):
    raw = byte.to(tl.int32) & 255
    size = raw & 127
    half = tl.where(size == 127, 0x7E00, size << 7) | ((raw & 128) << 8)
    return half.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * 256.0
""",
    "_decode_f8e5m2": """\
def _decode_f8e5m2(byte):
    return (byte.to(tl.int32) << 8).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
""",
    "_philox": f"""\
def _philox(c0, c1, c2, c3, k0, k1):
    m0 = tl.full([], {MULTIPLIERS[0]}, tl.uint32)
    m1 = tl.full([], {MULTIPLIERS[1]}, tl.uint32)
    for _ in tl.static_range({ROUNDS}):
        a0 = c0
        b2 = c2
        c0 = tl.umulhi(b2, m1) ^ c1 ^ k0
        c2 = tl.umulhi(a0, m0) ^ c3 ^ k1
        c1 = b2 * m1
        c3 = a0 * m0
        k0 = k0 + tl.full([], {WEYL[0]}, tl.uint32)
        k1 = k1 + tl.full([], {WEYL[1]}, tl.uint32)
    return c0, c1, c2, c3
""",
    "_seed_word": """\
def _seed_word(value, address, k: tl.constexpr):
    # at the address, unless that is zero
    place = address.to(tl.int64).to(tl.pointer_type(tl.int64)) + k
    return tl.load(place, mask=address != 0, other=value)
""",
    "_words": """\
def _words(number, seed, offset, stream):
    # the four words of counters, which are 64-bit numbers
    zero = (number * 0).to(tl.uint32)
    low = number.to(tl.uint32)
    high = (number.to(tl.int64) >> 32).to(tl.uint32)
    return _philox(
        low, high, zero + offset.to(tl.uint32), zero + tl.full([], stream, tl.uint32),
        seed.to(tl.uint32), (seed >> 32).to(tl.uint32),
    )
""",
    "_unit": """\
def _unit(word):
    return (word >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08
""",
    "_uniform": """\
def _uniform(group, col, seed, offset, stream):
    # a number for each element by itself: three of four words are thrown away
    w0, w1, w2, w3 = _words(group * 16 + (col % 64) // 4, seed, offset, stream)
    which = col % 4
    word = tl.where(which < 2, tl.where(which == 0, w0, w1), tl.where(which == 2, w2, w3))
    return _unit(word)
""",
    "_uniform_block": """\
def _uniform_block(counter, seed, offset, stream, rows: tl.constexpr,
                   columns: tl.constexpr):
    # counters of whole groups of four elements: all four words are used, in turn
    w0, w1, w2, w3 = _words(counter, seed, offset, stream)
    words = tl.join(tl.join(w0, w2), tl.join(w1, w3))
    return _unit(tl.reshape(words, [rows, columns]))
""",
    "_bernoulli": """\
def _bernoulli(group, col, seed, offset, stream, below: tl.constexpr):
    # a boolean for each element by itself: seven of eight halves are thrown away
    w0, w1, w2, w3 = _words(group * 8 + (col % 64) // 8, seed, offset, stream)
    which = (col % 8) // 2
    word = tl.where(which < 2, tl.where(which == 0, w0, w1), tl.where(which == 2, w2, w3))
    return tl.where(col % 2 == 0, word & 0xFFFF, word >> 16) < below
""",
    "_bernoulli_block": """\
def _bernoulli_block(counter, seed, offset, stream, below: tl.constexpr,
                     rows: tl.constexpr, columns: tl.constexpr):
    # counters of whole groups of eight elements: both halves of all four words are used, in turn
    w0, w1, w2, w3 = _words(counter, seed, offset, stream)
    words = tl.join(tl.join(w0, w2), tl.join(w1, w3))
    halves = tl.join(words & 0xFFFF, words >> 16)
    return tl.reshape(halves, [rows, columns]) < below
""",
    "_bernoulli_quads": """\
def _bernoulli_quads(quad, seed, offset, stream, below: tl.constexpr,
                     rows: tl.constexpr, columns: tl.constexpr):
    # groups of four elements take two words of a counter, and the next four the others
    w0, w1, w2, w3 = _words(quad // 2, seed, offset, stream)
    is_first = quad % 2 == 0
    words = tl.join(tl.where(is_first, w0, w2), tl.where(is_first, w1, w3))
    halves = tl.join(words & 0xFFFF, words >> 16)
    return tl.reshape(halves, [rows, columns]) < below
""",
}
