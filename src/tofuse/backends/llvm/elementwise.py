"""LLVM IR of one elementwise op on scalars or whole vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tofuse.backends.llvm.bf16_convert import bf16_bits
from tofuse.backends.llvm.fp8_convert import round_to_fp8
from tofuse.backends.llvm.ir_text import REGISTER_TYPES, FunctionBuilder, literal, vector_type
from tofuse.backends.llvm.vector_math import LIBRARY, MATH, math_symbol
from tofuse.errors import CompileError
from tofuse.ir.types import DType

_Rule = Callable[[FunctionBuilder, Sequence[str], "OpSignature"], str]


@dataclass(frozen=True)
class OpSignature:
    """The element types of an op's operands and result, and its number of lanes."""

    operand_dtype: DType
    result_dtype: DType
    lanes: int

    @property
    def operand_type(self) -> str:
        return vector_type(REGISTER_TYPES[self.operand_dtype], self.lanes)

    @property
    def result_type(self) -> str:
        return vector_type(REGISTER_TYPES[self.result_dtype], self.lanes)

    @property
    def mask_type(self) -> str:
        return vector_type("i1", self.lanes)

    @property
    def suffix(self) -> str:
        """Return the operand type as the names of intrinsics spell it."""
        ty = REGISTER_TYPES[self.operand_dtype]
        short = {"float": "f32", "double": "f64"}.get(ty, ty)
        return short if self.lanes == 1 else f"v{self.lanes}{short}"

    def const(self, value: bool | int | float) -> str:
        return literal(value, self.operand_dtype, self.lanes)


def emit_elementwise(
    f: FunctionBuilder, op: str, args: Sequence[str], signature: OpSignature
) -> str:
    """Emit an op and return its result; raise CompileError if this backend has no rule for it."""
    if op in _RULES:
        return _RULES[op](f, args, signature)
    if (op in MATH or op in LIBRARY) and signature.operand_dtype.is_float:
        return _math_call(f, op, args, signature)
    raise CompileError(f"no LLVM rule for {op} of {signature.operand_dtype.value}")


def _math_call(f: FunctionBuilder, op: str, args: Sequence[str], s: OpSignature) -> str:
    elem = "f64" if s.operand_dtype is DType.F64 else "f32"
    f.math_calls[op, elem, s.lanes] = None
    typed = ", ".join(f"{s.operand_type} {a}" for a in args)
    return f.let(f"call {s.operand_type} {math_symbol(op, elem, s.lanes)}({typed})")


def emit_accumulation(f: FunctionBuilder, total: str, x: str, signature: OpSignature) -> str:
    """Add `x` to a running sum; LLVM may contract a product that only the sum uses to an fma."""
    return _arith("fadd", "add", contract=True)(f, (total, x), signature)


def _arith(float_op: str, int_op: str, *, contract: bool = False) -> _Rule:
    """Return the rule of an arithmetic op; with `contract`, LLVM may make it part of an fma.

    LLVM contracts a product and a sum only if both carry the flag. Sums of elements never do:
    whether a product has other users differs between kernels, and a backward kernel that recomputes
    a value must get the same bits as the forward, for instance to find its maximum.
    """

    def rule(f: FunctionBuilder, args: Sequence[str], s: OpSignature) -> str:
        flag = "contract " if contract and f.contract else ""
        op = f"{float_op} {flag}" if s.operand_dtype.is_float else int_op
        return f.let(f"{op} {s.operand_type} {args[0]}, {args[1]}")

    return rule


def _compare(float_op: str, signed: str, unsigned: str) -> _Rule:
    def rule(f: FunctionBuilder, args: Sequence[str], s: OpSignature) -> str:
        if s.operand_dtype.is_float:
            op = f"fcmp {float_op}"
        else:
            op = f"icmp {unsigned if s.operand_dtype in (DType.BOOL, DType.U8) else signed}"
        return f.let(f"{op} {s.operand_type} {args[0]}, {args[1]}")

    return rule


def _select(f: FunctionBuilder, s: OpSignature, ty: str, c: str, a: str, b: str) -> str:
    return f.let(f"select {s.mask_type} {c}, {ty} {a}, {ty} {b}")


def _extremum(ordered: str, signed: str, unsigned: str) -> _Rule:
    def rule(f: FunctionBuilder, args: Sequence[str], s: OpSignature) -> str:
        a, b = args
        if not s.operand_dtype.is_float:
            op = unsigned if s.operand_dtype in (DType.BOOL, DType.U8) else signed
            c = f.let(f"icmp {op} {s.operand_type} {a}, {b}")
            return _select(f, s, s.operand_type, c, a, b)
        for constant, test in ((b, "u"), (a, "o")):
            if not constant.startswith("%") and "0x7FF8" not in constant:
                # this constant is not nan: the test keeps a nan of the other, and b if equal
                c = f.let(f"fcmp {test}{ordered} {s.operand_type} {a}, {b}")
                return _select(f, s, s.operand_type, c, a, b)
        c = f.let(f"fcmp o{ordered} {s.operand_type} {a}, {b}")
        larger = _select(f, s, s.operand_type, c, a, b)
        nan = f.let(f"fcmp uno {s.operand_type} {a}, {a}")
        return _select(f, s, s.operand_type, nan, a, larger)

    return rule


def _intrinsic(name: str) -> _Rule:
    def rule(f: FunctionBuilder, args: Sequence[str], s: OpSignature) -> str:
        if not s.operand_dtype.is_float:
            return args[0]
        typed = [(s.operand_type, a) for a in args]
        return f.call(f"@llvm.{name}.{s.suffix}", s.operand_type, *typed)

    return rule


def _neg(f: FunctionBuilder, args: Sequence[str], s: OpSignature) -> str:
    if s.operand_dtype.is_float:
        return f.let(f"fneg {s.operand_type} {args[0]}")
    return f.let(f"sub {s.operand_type} {s.const(0)}, {args[0]}")


def _abs(f: FunctionBuilder, args: Sequence[str], s: OpSignature) -> str:
    if s.operand_dtype.is_float:
        return f.call(f"@llvm.fabs.{s.suffix}", s.operand_type, (s.operand_type, args[0]))
    if s.operand_dtype in (DType.U8, DType.BOOL):
        return args[0]
    ty = s.operand_type
    return f.call(f"@llvm.abs.{s.suffix}", ty, (ty, args[0]), ("i1", "false"))


def _sign(f: FunctionBuilder, args: Sequence[str], s: OpSignature) -> str:
    if s.operand_dtype is DType.BOOL:
        return args[0]
    zero = s.const(0)
    above = _RULES["gt"](f, (args[0], zero), s)
    below = _RULES["lt"](f, (args[0], zero), s)
    negative = _select(f, s, s.operand_type, below, s.const(-1), zero)
    return _select(f, s, s.operand_type, above, s.const(1), negative)


def _nextafter(f: FunctionBuilder, args: Sequence[str], s: OpSignature) -> str:
    """Step the bit pattern by one; bit patterns of floats are ordered like their magnitudes."""
    x, y = args
    bits = s.operand_dtype.itemsize * 8
    int_ty, int_dtype = vector_type(f"i{bits}", s.lanes), DType.I32 if bits == 32 else DType.I64
    int_values = [f.let(f"bitcast {s.operand_type} {v} to {int_ty}") for v in (x, y)]
    up = f.let(f"fcmp olt {s.operand_type} {x}, {y}")
    below = f.let(f"icmp slt {int_ty} {int_values[0]}, {literal(0, int_dtype, s.lanes)}")
    grows = f.let(f"xor {s.mask_type} {up}, {below}")
    one, minus_one = literal(1, int_dtype, s.lanes), literal(-1, int_dtype, s.lanes)
    step = _select(f, s, int_ty, grows, one, minus_one)
    stepped = f.let(f"add {int_ty} {int_values[0]}, {step}")
    sign = f.let(f"and {int_ty} {int_values[1]}, {literal(-(2 ** (bits - 1)), int_dtype, s.lanes)}")
    smallest = f.let(f"or {int_ty} {sign}, {one}")
    from_zero = f.let(f"fcmp oeq {s.operand_type} {x}, {s.const(0.0)}")
    stepped = _select(f, s, int_ty, from_zero, smallest, stepped)
    stepped = f.let(f"bitcast {int_ty} {stepped} to {s.operand_type}")
    equal = f.let(f"fcmp oeq {s.operand_type} {x}, {y}")
    stepped = _select(f, s, s.operand_type, equal, y, stepped)
    nan = f.let(f"fcmp uno {s.operand_type} {x}, {y}")
    return _select(f, s, s.operand_type, nan, f.let(f"fadd {s.operand_type} {x}, {y}"), stepped)


def _reciprocal(f: FunctionBuilder, args: Sequence[str], s: OpSignature) -> str:
    return f.let(f"fdiv {s.operand_type} {s.const(1.0)}, {args[0]}")


def _to_bool(f: FunctionBuilder, arg: str, s: OpSignature) -> str:
    if s.operand_dtype is DType.BOOL:
        return arg
    return _RULES["ne"](f, (arg, s.const(0)), s)


def _logical(op: str) -> _Rule:
    def rule(f: FunctionBuilder, args: Sequence[str], s: OpSignature) -> str:
        a, b = (_to_bool(f, x, s) for x in args)
        return f.let(f"{op} {s.mask_type} {a}, {b}")

    return rule


def _logical_not(f: FunctionBuilder, args: Sequence[str], s: OpSignature) -> str:
    true = literal(True, DType.BOOL, s.lanes)
    return f.let(f"xor {s.mask_type} {_to_bool(f, args[0], s)}, {true}")


def _bitwise(op: str) -> _Rule:
    return lambda f, args, s: f.let(f"{op} {s.operand_type} {args[0]}, {args[1]}")


def _bitwise_not(f: FunctionBuilder, args: Sequence[str], s: OpSignature) -> str:
    ones = s.const(s.operand_dtype is DType.BOOL or -1)
    return f.let(f"xor {s.operand_type} {args[0]}, {ones}")


def _isnan(f: FunctionBuilder, args: Sequence[str], s: OpSignature) -> str:
    return f.let(f"fcmp uno {s.operand_type} {args[0]}, {args[0]}")


def _isinf(f: FunctionBuilder, args: Sequence[str], s: OpSignature) -> str:
    magnitude = _abs(f, args, s)
    return f.let(f"fcmp oeq {s.operand_type} {magnitude}, {s.const(float('inf'))}")


def _where(f: FunctionBuilder, args: Sequence[str], s: OpSignature) -> str:
    return _select(f, s, s.operand_type, args[0], args[1], args[2])


def _shift(left: bool) -> _Rule:
    def rule(f: FunctionBuilder, args: Sequence[str], s: OpSignature) -> str:
        x, n = args
        bits = s.operand_dtype.itemsize * 8
        too_far = f.let(f"icmp uge {s.operand_type} {n}, {s.const(bits)}")
        if left:
            shifted = f.let(f"shl {s.operand_type} {x}, {n}")
            return _select(f, s, s.operand_type, too_far, s.const(0), shifted)
        op = "lshr" if s.operand_dtype is DType.U8 else "ashr"
        n = _select(f, s, s.operand_type, too_far, s.const(bits - 1), n)
        shifted = f.let(f"{op} {s.operand_type} {x}, {n}")
        if s.operand_dtype is not DType.U8:
            return shifted
        return _select(f, s, s.operand_type, too_far, s.const(0), shifted)

    return rule


def _truncdiv(f: FunctionBuilder, args: Sequence[str], s: OpSignature) -> str:
    if s.operand_dtype.is_float:
        quotient = f.let(f"fdiv {s.operand_type} {args[0]}, {args[1]}")
        return _intrinsic("trunc")(f, (quotient,), s)
    op = "udiv" if s.operand_dtype is DType.U8 else "sdiv"
    return f.let(f"{op} {s.operand_type} {args[0]}, {args[1]}")


def _fmod(f: FunctionBuilder, args: Sequence[str], s: OpSignature) -> str:
    if s.operand_dtype.is_float:
        return _math_call(f, "fmod", args, s)
    op = "urem" if s.operand_dtype is DType.U8 else "srem"
    return f.let(f"{op} {s.operand_type} {args[0]}, {args[1]}")


def _signs_differ(f: FunctionBuilder, remainder: str, divisor: str, s: OpSignature) -> str:
    """Return where a remainder is nonzero and its sign differs from the divisor's."""
    nonzero = _RULES["ne"](f, (remainder, s.const(0)), s)
    negative = [_RULES["lt"](f, (x, s.const(0)), s) for x in (remainder, divisor)]
    differ = f.let(f"xor {s.mask_type} {negative[0]}, {negative[1]}")
    return f.let(f"and {s.mask_type} {nonzero}, {differ}")


def _remainder(f: FunctionBuilder, args: Sequence[str], s: OpSignature) -> str:
    remainder = _fmod(f, args, s)
    add = "fadd" if s.operand_dtype.is_float else "add"
    corrected = f.let(f"{add} {s.operand_type} {remainder}, {args[1]}")
    return _select(
        f, s, s.operand_type, _signs_differ(f, remainder, args[1], s), corrected, remainder
    )


def _floordiv(f: FunctionBuilder, args: Sequence[str], s: OpSignature) -> str:
    a, b = args
    remainder = _fmod(f, args, s)
    differ = _signs_differ(f, remainder, b, s)
    if not s.operand_dtype.is_float:
        quotient = _truncdiv(f, args, s)
        one_less = f.let(f"sub {s.operand_type} {quotient}, {s.const(1)}")
        return _select(f, s, s.operand_type, differ, one_less, quotient)
    # c10::div_floor_floating: divide a - remainder, then correct a quotient rounded down
    difference = f.let(f"fsub {s.operand_type} {a}, {remainder}")
    quotient = f.let(f"fdiv {s.operand_type} {difference}, {b}")
    one_less = f.let(f"fsub {s.operand_type} {quotient}, {s.const(1.0)}")
    quotient = _select(f, s, s.operand_type, differ, one_less, quotient)
    floor = _intrinsic("floor")(f, (quotient,), s)
    fraction = f.let(f"fsub {s.operand_type} {quotient}, {floor}")
    rounded_down = f.let(f"fcmp ogt {s.operand_type} {fraction}, {s.const(0.5)}")
    one_more = f.let(f"fadd {s.operand_type} {floor}, {s.const(1.0)}")
    floor = _select(f, s, s.operand_type, rounded_down, one_more, floor)
    exact_quotient = f.let(f"fdiv {s.operand_type} {a}, {b}")
    signed_zero = _intrinsic("copysign")(f, (s.const(0.0), exact_quotient), s)
    is_zero = f.let(f"fcmp oeq {s.operand_type} {quotient}, {s.const(0.0)}")
    floor = _select(f, s, s.operand_type, is_zero, signed_zero, floor)
    by_zero = f.let(f"fcmp oeq {s.operand_type} {b}, {s.const(0.0)}")
    return _select(f, s, s.operand_type, by_zero, exact_quotient, floor)


def _convert(f: FunctionBuilder, args: Sequence[str], s: OpSignature) -> str:
    (x,) = args
    a, b = s.operand_dtype, s.result_dtype
    if a.is_float and b.is_float:
        op = "fpext" if b is DType.F64 else "fptrunc"
    elif a.is_float:
        if b in (DType.I64, DType.I32):
            op = "fptosi"
        else:  # C converts a float to a small integer by way of int
            middle = vector_type("i32", s.lanes)
            x = f.let(f"fptosi {s.operand_type} {x} to {middle}")
            return f.let(f"trunc {middle} {x} to {s.result_type}")
    elif b.is_float:
        op = "uitofp" if a in (DType.U8, DType.BOOL) else "sitofp"
    elif REGISTER_TYPES[a] == REGISTER_TYPES[b]:
        return x
    elif a.itemsize > b.itemsize and a is not DType.BOOL:
        op = "trunc"
    else:
        op = "zext" if a in (DType.U8, DType.BOOL) else "sext"
    return f.let(f"{op} {s.operand_type} {x} to {s.result_type}")


def _round_f16(f: FunctionBuilder, args: Sequence[str], s: OpSignature) -> str:
    half_ty = vector_type("half", s.lanes)
    rounded = f.let(f"fptrunc {s.operand_type} {args[0]} to {half_ty}")
    return f.let(f"fpext {half_ty} {rounded} to {s.operand_type}")


def _round_bf16(f: FunctionBuilder, args: Sequence[str], s: OpSignature) -> str:
    int_ty = vector_type("i32", s.lanes)
    bits = bf16_bits(f, args[0], s.lanes)
    upper = f.let(f"and {int_ty} {bits}, {literal(-65536, DType.I32, s.lanes)}")
    return f.let(f"bitcast {int_ty} {upper} to {s.operand_type}")


def _round_fp8(dtype: DType) -> _Rule:
    def rule(f: FunctionBuilder, args: Sequence[str], s: OpSignature) -> str:
        return round_to_fp8(f, args[0], dtype, s.lanes)

    return rule


_RULES: dict[str, _Rule] = {
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
    "round_f8e4m3": _round_fp8(DType.F8E4M3),
    "round_f8e5m2": _round_fp8(DType.F8E5M2),
}
