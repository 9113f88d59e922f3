"""Floats of eight bits: what is in memory, to and from a float32 register; see ops/fp8.py."""

from __future__ import annotations

from tofuse.backends.llvm.ir_text import Function, literal, vector
from tofuse.ir.types import DType
from tofuse.ops.fp8 import FORMATS, INFINITE, NAN


def encoded(f: Function, x: str, dtype: DType, lanes: int) -> str:
    """The byte, in an i32, that a float32 becomes."""
    form, drop = FORMATS[dtype], 23 - FORMATS[dtype].fraction
    ints, floats, bits = vector("i32", lanes), vector("float", lanes), vector("i1", lanes)

    def number(value: int) -> str:
        return literal(value, DType.I32, lanes)

    raw = f.let(f"bitcast {floats} {x} to {ints}")
    size = f.let(f"and {ints} {raw}, {number(0x7FFFFFFF)}")
    sign = f.let(f"lshr {ints} {raw}, {number(24)}")
    sign = f.let(f"and {ints} {sign}, {number(0x80)}")
    # a normal number: half of the last place added, one less for ties, and the exponent moved
    odd = f.let(f"lshr {ints} {size}, {number(drop)}")
    odd = f.let(f"and {ints} {odd}, {number(1)}")
    moved = f.let(f"add {ints} {size}, {odd}")
    shift = (1 << (drop - 1)) - 1 - ((form.smallest - 1) << 23)
    moved = f.let(f"add {ints} {moved}, {number(shift)}")
    normal = f.let(f"lshr {ints} {moved}, {number(drop)}")
    # a smaller one: rounded by an addition whose result ends where its last place is
    anchor = (form.smallest + drop) << 23
    unsigned = f.let(f"bitcast {ints} {size} to {floats}")
    shifted = f.let(f"bitcast {ints} {number(anchor)} to {floats}")
    summed = f.let(f"fadd {floats} {unsigned}, {shifted}")
    below = f.let(f"bitcast {floats} {summed} to {ints}")
    below = f.let(f"sub {ints} {below}, {number(anchor)}")
    is_small = f.let(f"icmp ult {ints} {size}, {number(form.smallest << 23)}")
    is_large = f.let(f"icmp uge {ints} {size}, {number(form.limit)}")
    is_nan = f.let(f"icmp ugt {ints} {size}, {number(INFINITE)}")
    found = f.let(f"select {bits} {is_small}, {ints} {below}, {ints} {normal}")
    found = f.let(f"select {bits} {is_large}, {ints} {number(form.beyond)}, {ints} {found}")
    found = f.let(f"select {bits} {is_nan}, {ints} {number(NAN)}, {ints} {found}")
    return f.let(f"or {ints} {found}, {sign}")


def decoded(f: Function, byte: str, dtype: DType, lanes: int) -> str:
    """The float32 that a byte in an i32 stands for; by way of a half, which has more of both."""
    ints, floats = vector("i32", lanes), vector("float", lanes)
    shorts, halves, bits = vector("i16", lanes), vector("half", lanes), vector("i1", lanes)

    def number(value: int) -> str:
        return literal(value, DType.I32, lanes)

    upper = f.let(f"shl {ints} {byte}, {number(8)}")
    if dtype is DType.F8E4M3:
        sign = f.let(f"and {ints} {upper}, {number(0x8000)}")
        size = f.let(f"and {ints} {byte}, {number(0x7F)}")
        is_nan = f.let(f"icmp eq {ints} {size}, {number(NAN)}")
        moved = f.let(f"shl {ints} {size}, {number(7)}")
        moved = f.let(f"select {bits} {is_nan}, {ints} {number(0x7E00)}, {ints} {moved}")
        upper = f.let(f"or {ints} {moved}, {sign}")
    narrow = f.let(f"trunc {ints} {upper} to {shorts}")
    half = f.let(f"bitcast {shorts} {narrow} to {halves}")
    wide = f.let(f"fpext {halves} {half} to {floats}")
    if dtype is DType.F8E5M2:
        return wide
    # the exponent is 8 too small
    return f.let(f"fmul {floats} {wide}, {literal(256.0, DType.F32, lanes)}")


def rounded(f: Function, x: str, dtype: DType, lanes: int) -> str:
    """A float32 as it is read again where it was stored."""
    byte = encoded(f, x, dtype, lanes)
    found = decoded(f, byte, dtype, lanes)
    f.bytes[found, dtype] = byte
    return found


def widened(f: Function, raw: str, dtype: DType, lanes: int) -> str:
    """From bytes in memory."""
    byte = f.let(f"zext {vector('i8', lanes)} {raw} to {vector('i32', lanes)}")
    found = decoded(f, byte, dtype, lanes)
    f.bytes[found, dtype] = byte
    return found


def narrowed(f: Function, x: str, dtype: DType, lanes: int) -> str:
    """To bytes in memory."""
    byte = f.bytes.get((x, dtype)) or encoded(f, x, dtype, lanes)
    return f.let(f"trunc {vector('i32', lanes)} {byte} to {vector('i8', lanes)}")
