"""One elementwise op on registers: scalars or whole vectors, as LLVM IR."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tofuse.backends.llvm.fp8_convert import rounded
from tofuse.backends.llvm.ir_text import (
    REGISTER,
    Function,
    literal,
    vector,
)
from tofuse.backends.llvm.vector_math import LIBRARY, MATH, math_symbol
from tofuse.errors import CompileError
from tofuse.ir.types import DType


@dataclass(frozen=True)
class Shape:
    """What an op works on: the operands' element type, the result's, and how many lanes."""

    of: DType
    dtype: DType
    lanes: int

    @property
    def operand(self) -> str:
        return vector(REGISTER[self.of], self.lanes)

    @property
    def result(self) -> str:
        return vector(REGISTER[self.dtype], self.lanes)

    @property
    def mask(self) -> str:
        return vector("i1", self.lanes)

    @property
    def suffix(self) -> str:
        """How intrinsics spell the operand type."""
        short = {"float": "f32", "double": "f64"}.get(REGISTER[self.of], REGISTER[self.of])
        return short if self.lanes == 1 else f"v{self.lanes}{short}"

    def const(self, value: bool | int | float) -> str:
        return literal(value, self.of, self.lanes)


def emit_elementwise(f: Function, op: str, args: Sequence[str], shape: Shape) -> str:
    """The name of the result; raises CompileError for an op this backend has no rule for."""
    if op in _RULES:
        return _RULES[op](f, args, shape)
    if (op in MATH or op in LIBRARY) and shape.of.is_float:
        return _function(f, op, args, shape)
    raise CompileError(f"no LLVM rule for {op} of {shape.of.value}")


def _function(f: Function, op: str, args: Sequence[str], s: Shape) -> str:
    elem = "f64" if s.of is DType.F64 else "f32"
    f.math[op, elem, s.lanes] = None
    typed = ", ".join(f"{s.operand} {a}" for a in args)
    return f.let(f"call {s.operand} {math_symbol(op, elem, s.lanes)}({typed})")


def emit_accumulation(f: Function, total: str, x: str, shape: Shape) -> str:
    """A sum of which x is one more part; a product is rounded with it, where nobody else has it."""
    return _arith("fadd", "add", contract=True)(f, (total, x), shape)


def _arith(
    float_op: str, int_op: str, *, contract: bool = False
) -> Callable[[Function, Sequence[str], Shape], str]:
    """`contract`: it may be half of a fused multiply-add, of which both halves say so.

    Additions of elements do not: whether a product has other users differs from kernel to kernel,
    and a value that a backward computes again must be the forward's, of which it has the maximum.
    """

    def rule(f: Function, args: Sequence[str], s: Shape) -> str:
        flag = "contract " if contract and f.contract else ""
        op = f"{float_op} {flag}" if s.of.is_float else int_op
        return f.let(f"{op} {s.operand} {args[0]}, {args[1]}")

    return rule


def _compare(float_op: str, signed: str, unsigned: str) -> Callable[..., str]:
    def rule(f: Function, args: Sequence[str], s: Shape) -> str:
        if s.of.is_float:
            op = f"fcmp {float_op}"
        else:
            op = f"icmp {unsigned if s.of in (DType.BOOL, DType.U8) else signed}"
        return f.let(f"{op} {s.operand} {args[0]}, {args[1]}")

    return rule


def _select(f: Function, s: Shape, kind: str, c: str, a: str, b: str) -> str:
    return f.let(f"select {s.mask} {c}, {kind} {a}, {kind} {b}")


def _extremum(ordered: str, signed: str, unsigned: str) -> Callable[..., str]:
    def rule(f: Function, args: Sequence[str], s: Shape) -> str:
        a, b = args
        if not s.of.is_float:
            op = unsigned if s.of in (DType.BOOL, DType.U8) else signed
            c = f.let(f"icmp {op} {s.operand} {a}, {b}")
            return _select(f, s, s.operand, c, a, b)
        for constant, test in ((b, "u"), (a, "o")):
            if not constant.startswith("%") and "0x7FF8" not in constant:
                # a constant that is not nan: the test keeps the other's nan, and b where equal
                c = f.let(f"fcmp {test}{ordered} {s.operand} {a}, {b}")
                return _select(f, s, s.operand, c, a, b)
        c = f.let(f"fcmp o{ordered} {s.operand} {a}, {b}")
        larger = _select(f, s, s.operand, c, a, b)
        nan = f.let(f"fcmp uno {s.operand} {a}, {a}")
        return _select(f, s, s.operand, nan, a, larger)

    return rule


def _intrinsic(name: str) -> Callable[..., str]:
    def rule(f: Function, args: Sequence[str], s: Shape) -> str:
        if not s.of.is_float:
            return args[0]
        typed = [(s.operand, a) for a in args]
        return f.call(f"@llvm.{name}.{s.suffix}", s.operand, *typed)

    return rule


def _neg(f: Function, args: Sequence[str], s: Shape) -> str:
    if s.of.is_float:
        return f.let(f"fneg {s.operand} {args[0]}")
    return f.let(f"sub {s.operand} {s.const(0)}, {args[0]}")


def _abs(f: Function, args: Sequence[str], s: Shape) -> str:
    if s.of.is_float:
        return f.call(f"@llvm.fabs.{s.suffix}", s.operand, (s.operand, args[0]))
    if s.of in (DType.U8, DType.BOOL):
        return args[0]
    return f.call(f"@llvm.abs.{s.suffix}", s.operand, (s.operand, args[0]), ("i1", "false"))


def _sign(f: Function, args: Sequence[str], s: Shape) -> str:
    if s.of is DType.BOOL:
        return args[0]
    zero = s.const(0)
    above = _RULES["gt"](f, (args[0], zero), s)
    below = _RULES["lt"](f, (args[0], zero), s)
    negative = _select(f, s, s.operand, below, s.const(-1), zero)
    return _select(f, s, s.operand, above, s.const(1), negative)


def _nextafter(f: Function, args: Sequence[str], s: Shape) -> str:
    """One step in the order of the bits, which is that of the sizes."""
    x, y = args
    bits = s.of.itemsize * 8
    kind, of = vector(f"i{bits}", s.lanes), DType.I32 if bits == 32 else DType.I64
    ints = [f.let(f"bitcast {s.operand} {v} to {kind}") for v in (x, y)]
    up = f.let(f"fcmp olt {s.operand} {x}, {y}")
    below = f.let(f"icmp slt {kind} {ints[0]}, {literal(0, of, s.lanes)}")
    grows = f.let(f"xor {s.mask} {up}, {below}")
    one, less = literal(1, of, s.lanes), literal(-1, of, s.lanes)
    step = _select(f, s, kind, grows, one, less)
    moved = f.let(f"add {kind} {ints[0]}, {step}")
    sign = f.let(f"and {kind} {ints[1]}, {literal(-(2 ** (bits - 1)), of, s.lanes)}")
    least = f.let(f"or {kind} {sign}, {one}")
    from_zero = f.let(f"fcmp oeq {s.operand} {x}, {s.const(0.0)}")
    moved = _select(f, s, kind, from_zero, least, moved)
    moved = f.let(f"bitcast {kind} {moved} to {s.operand}")
    equal = f.let(f"fcmp oeq {s.operand} {x}, {y}")
    moved = _select(f, s, s.operand, equal, y, moved)
    nan = f.let(f"fcmp uno {s.operand} {x}, {y}")
    return _select(f, s, s.operand, nan, f.let(f"fadd {s.operand} {x}, {y}"), moved)


def _reciprocal(f: Function, args: Sequence[str], s: Shape) -> str:
    return f.let(f"fdiv {s.operand} {s.const(1.0)}, {args[0]}")


def _to_bool(f: Function, arg: str, s: Shape) -> str:
    if s.of is DType.BOOL:
        return arg
    return _RULES["ne"](f, (arg, s.const(0)), s)


def _logical(op: str) -> Callable[..., str]:
    def rule(f: Function, args: Sequence[str], s: Shape) -> str:
        a, b = (_to_bool(f, x, s) for x in args)
        return f.let(f"{op} {s.mask} {a}, {b}")

    return rule


def _logical_not(f: Function, args: Sequence[str], s: Shape) -> str:
    return f.let(f"xor {s.mask} {_to_bool(f, args[0], s)}, {literal(True, DType.BOOL, s.lanes)}")


def _bitwise(op: str) -> Callable[..., str]:
    return lambda f, args, s: f.let(f"{op} {s.operand} {args[0]}, {args[1]}")


def _bitwise_not(f: Function, args: Sequence[str], s: Shape) -> str:
    ones = s.const(s.of is DType.BOOL or -1)
    return f.let(f"xor {s.operand} {args[0]}, {ones}")


def _isnan(f: Function, args: Sequence[str], s: Shape) -> str:
    return f.let(f"fcmp uno {s.operand} {args[0]}, {args[0]}")


def _isinf(f: Function, args: Sequence[str], s: Shape) -> str:
    size = _abs(f, args, s)
    return f.let(f"fcmp oeq {s.operand} {size}, {s.const(float('inf'))}")


def _where(f: Function, args: Sequence[str], s: Shape) -> str:
    return _select(f, s, s.operand, args[0], args[1], args[2])


def _shift(left: bool) -> Callable[..., str]:
    def rule(f: Function, args: Sequence[str], s: Shape) -> str:
        x, n = args
        bits = s.of.itemsize * 8
        wide = f.let(f"icmp uge {s.operand} {n}, {s.const(bits)}")
        if left:
            moved = f.let(f"shl {s.operand} {x}, {n}")
            return _select(f, s, s.operand, wide, s.const(0), moved)
        op = "lshr" if s.of is DType.U8 else "ashr"
        n = _select(f, s, s.operand, wide, s.const(bits - 1), n)
        moved = f.let(f"{op} {s.operand} {x}, {n}")
        return _select(f, s, s.operand, wide, s.const(0), moved) if s.of is DType.U8 else moved

    return rule


def _truncdiv(f: Function, args: Sequence[str], s: Shape) -> str:
    if s.of.is_float:
        quotient = f.let(f"fdiv {s.operand} {args[0]}, {args[1]}")
        return _intrinsic("trunc")(f, (quotient,), s)
    op = "udiv" if s.of is DType.U8 else "sdiv"
    return f.let(f"{op} {s.operand} {args[0]}, {args[1]}")


def _fmod(f: Function, args: Sequence[str], s: Shape) -> str:
    if s.of.is_float:
        return _function(f, "fmod", args, s)
    op = "urem" if s.of is DType.U8 else "srem"
    return f.let(f"{op} {s.operand} {args[0]}, {args[1]}")


def _unlike_signs(f: Function, rest: str, divisor: str, s: Shape) -> str:
    """Where a remainder is not zero and has the other sign than the divisor."""
    nonzero = _RULES["ne"](f, (rest, s.const(0)), s)
    below = [_RULES["lt"](f, (x, s.const(0)), s) for x in (rest, divisor)]
    unlike = f.let(f"xor {s.mask} {below[0]}, {below[1]}")
    return f.let(f"and {s.mask} {nonzero}, {unlike}")


def _remainder(f: Function, args: Sequence[str], s: Shape) -> str:
    rest = _fmod(f, args, s)
    add = "fadd" if s.of.is_float else "add"
    moved = f.let(f"{add} {s.operand} {rest}, {args[1]}")
    return _select(f, s, s.operand, _unlike_signs(f, rest, args[1], s), moved, rest)


def _floordiv(f: Function, args: Sequence[str], s: Shape) -> str:
    a, b = args
    rest = _fmod(f, args, s)
    unlike = _unlike_signs(f, rest, b, s)
    if not s.of.is_float:
        quotient = _truncdiv(f, args, s)
        less = f.let(f"sub {s.operand} {quotient}, {s.const(1)}")
        return _select(f, s, s.operand, unlike, less, quotient)
    # c10::div_floor_floating: exact quotient of (a - rest), then guard against its rounding
    whole = f.let(f"fsub {s.operand} {a}, {rest}")
    quotient = f.let(f"fdiv {s.operand} {whole}, {b}")
    less = f.let(f"fsub {s.operand} {quotient}, {s.const(1.0)}")
    quotient = _select(f, s, s.operand, unlike, less, quotient)
    floor = _intrinsic("floor")(f, (quotient,), s)
    slack = f.let(f"fsub {s.operand} {quotient}, {floor}")
    far = f.let(f"fcmp ogt {s.operand} {slack}, {s.const(0.5)}")
    up = f.let(f"fadd {s.operand} {floor}, {s.const(1.0)}")
    floor = _select(f, s, s.operand, far, up, floor)
    plain = f.let(f"fdiv {s.operand} {a}, {b}")
    signed_zero = _intrinsic("copysign")(f, (s.const(0.0), plain), s)
    is_zero = f.let(f"fcmp oeq {s.operand} {quotient}, {s.const(0.0)}")
    floor = _select(f, s, s.operand, is_zero, signed_zero, floor)
    by_zero = f.let(f"fcmp oeq {s.operand} {b}, {s.const(0.0)}")
    return _select(f, s, s.operand, by_zero, plain, floor)


def _convert(f: Function, args: Sequence[str], s: Shape) -> str:
    (x,) = args
    a, b = s.of, s.dtype
    if a.is_float and b.is_float:
        op = "fpext" if b is DType.F64 else "fptrunc"
    elif a.is_float:
        if b in (DType.I64, DType.I32):
            op = "fptosi"
        else:  # C truncates a float to a small integer by way of int
            middle = vector("i32", s.lanes)
            x = f.let(f"fptosi {s.operand} {x} to {middle}")
            return f.let(f"trunc {middle} {x} to {s.result}")
    elif b.is_float:
        op = "uitofp" if a in (DType.U8, DType.BOOL) else "sitofp"
    elif REGISTER[a] == REGISTER[b]:
        return x
    elif a.itemsize > b.itemsize and a is not DType.BOOL:
        op = "trunc"
    else:
        op = "zext" if a in (DType.U8, DType.BOOL) else "sext"
    return f.let(f"{op} {s.operand} {x} to {s.result}")


def _round_f16(f: Function, args: Sequence[str], s: Shape) -> str:
    half = vector("half", s.lanes)
    narrow = f.let(f"fptrunc {s.operand} {args[0]} to {half}")
    return f.let(f"fpext {half} {narrow} to {s.operand}")


def bf16_bits(f: Function, x: str, lanes: int) -> str:
    """The 32-bit pattern whose upper half is `x` rounded to bfloat16, ties to even, nan kept."""
    kind, real = vector("i32", lanes), vector("float", lanes)
    bits = f.let(f"bitcast {real} {x} to {kind}")
    shifted = f.let(f"lshr {kind} {bits}, {literal(16, DType.I32, lanes)}")
    odd = f.let(f"and {kind} {shifted}, {literal(1, DType.I32, lanes)}")
    bias = f.let(f"add {kind} {odd}, {literal(0x7FFF, DType.I32, lanes)}")
    moved = f.let(f"add {kind} {bits}, {bias}")
    nan = f.let(f"fcmp uno {real} {x}, {x}")
    mask = vector("i1", lanes)
    quiet = literal(0x7FC00000, DType.I32, lanes)
    return f.let(f"select {mask} {nan}, {kind} {quiet}, {kind} {moved}")


def _round_bf16(f: Function, args: Sequence[str], s: Shape) -> str:
    kind = vector("i32", s.lanes)
    bits = bf16_bits(f, args[0], s.lanes)
    upper = f.let(f"and {kind} {bits}, {literal(-65536, DType.I32, s.lanes)}")
    return f.let(f"bitcast {kind} {upper} to {s.operand}")


def _round_quarter(dtype: DType) -> Callable[[Function, Sequence[str], Shape], str]:
    def rule(f: Function, args: Sequence[str], s: Shape) -> str:
        return rounded(f, args[0], dtype, s.lanes)

    return rule


_RULES: dict[str, Callable[[Function, Sequence[str], Shape], str]] = {
    "add": _arith("fadd", "add"),
    "sub": _arith("fsub", "sub"),
    "mul": _arith("fmul", "mul", contract=True),
    "div": _arith("fdiv", "sdiv"),
    "maximum": _extremum("gt", "sgt", "ugt"),
    "minimum": _extremum("lt", "slt", "ult"),
    "eq": _compare("oeq", "eq", "eq"),
    "ne": _compare("une", "ne", "ne"),
    "lt": _compare("olt", "slt", "ult"),
    "le": _compare("ole", "sle", "ule"),
    "gt": _compare("ogt", "sgt", "ugt"),
    "ge": _compare("oge", "sge", "uge"),
    "neg": _neg,
    "abs": _abs,
    "sign": _sign,
    "floor": _intrinsic("floor"),
    "ceil": _intrinsic("ceil"),
    "trunc": _intrinsic("trunc"),
    "round": _intrinsic("roundeven"),
    "sqrt": _intrinsic("sqrt"),
    "copysign": _intrinsic("copysign"),
    "reciprocal": _reciprocal,
    "nextafter": _nextafter,
    "logical_and": _logical("and"),
    "logical_or": _logical("or"),
    "logical_xor": _logical("xor"),
    "logical_not": _logical_not,
    "bitwise_and": _bitwise("and"),
    "bitwise_or": _bitwise("or"),
    "bitwise_xor": _bitwise("xor"),
    "bitwise_not": _bitwise_not,
    "shift_left": _shift(True),
    "shift_right": _shift(False),
    "isnan": _isnan,
    "isinf": _isinf,
    "where": _where,
    "truncdiv": _truncdiv,
    "fmod": _fmod,
    "remainder": _remainder,
    "floordiv": _floordiv,
    "convert": _convert,
    "round_bf16": _round_bf16,
    "round_f16": _round_f16,
    "round_f8e4m3": _round_quarter(DType.F8E4M3),
    "round_f8e5m2": _round_quarter(DType.F8E5M2),
}
