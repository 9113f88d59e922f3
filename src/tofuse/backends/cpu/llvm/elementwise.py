"""LLVM IR of one elementwise op on scalars or whole vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tofuse.backends.cpu.llvm.ir_text import REGISTER_TYPES, FunctionBuilder, literal, short_name
from tofuse.backends.cpu.llvm.memory_types import round_to
from tofuse.backends.cpu.llvm.vector_math.formula_builder import (
    FormulaBuilder,
    Value,
    math_symbol,
)
from tofuse.backends.cpu.llvm.vector_math.registry import MATH
from tofuse.backends.cpu.llvm.vector_math.vector_library import LIBRARY
from tofuse.errors import CompileError
from tofuse.ir.types import DType


class _OpBuilder(FormulaBuilder):
    """Appends the instructions of one op."""

    def __init__(self, f: FunctionBuilder, dtype: DType, result_dtype: DType, lanes: int) -> None:
        super().__init__(f, lanes)
        self.dtype, self.result_dtype = dtype, result_dtype
        self.is_unsigned = self.dtype in (DType.U8, DType.BOOL)

    def number(self, value: bool | int | float) -> Value:
        """Return a constant of the operands' type."""
        return self.operand(literal(value, self.dtype, self.width))

    def operand(self, text: str) -> Value:
        return self.value(text, REGISTER_TYPES[self.dtype])


_Rule = Callable[..., Value]  # of an _OpBuilder and the operands


def emit_elementwise(
    f: FunctionBuilder, op: str, args: Sequence[str], dtype: DType, result_dtype: DType, lanes: int
) -> str:
    """Return an op of operands of one dtype; raise CompileError if this backend has no rule."""
    b = _OpBuilder(f, dtype, result_dtype, lanes)
    operands = map(b.operand, args)
    if op in _RULES:
        return _RULES[op](b, *operands).text
    if (op in MATH or op in LIBRARY) and b.dtype.is_float:
        return _math_call(b, op, *operands).text
    raise CompileError(f"no LLVM rule for {op} of {b.dtype.value}")


def _math_call(b: _OpBuilder, op: str, *args: Value) -> Value:
    elem = short_name(args[0].scalar)
    b.f.math_calls[op, elem, b.width] = None
    ty, typed = b.type(args[0].scalar), ", ".join(a.typed for a in args)
    return b.operand(b.f.let(f"call {ty} {math_symbol(op, elem, b.width)}({typed})"))


def emit_accumulation(f: FunctionBuilder, total: str, x: str, dtype: DType, lanes: int) -> str:
    """Add `x` to a running sum; LLVM may contract a product that only the sum uses to an fma."""
    b = _OpBuilder(f, dtype, dtype, lanes)
    return _arith("fadd", "add", contract=True)(b, b.operand(total), b.operand(x)).text


def _arith(float_op: str, int_op: str, *, contract: bool = False) -> _Rule:
    """Return the rule of an arithmetic op; with `contract`, LLVM may make it part of an fma.

    LLVM contracts a product and a sum only if both carry the flag. Sums of elements never do:
    whether a product has other users differs between kernels, and a backward kernel that recomputes
    a value must get the same bits as the forward, for instance to find its maximum.
    """

    def rule(b: _OpBuilder, x: Value, y: Value) -> Value:
        flag = "contract " if contract and b.f.contract else ""
        return b.binary(f"{float_op} {flag}" if b.dtype.is_float else int_op, x, y)

    return rule


def _compare(float_op: str, signed: str, unsigned: str) -> _Rule:
    def rule(b: _OpBuilder, x: Value, y: Value) -> Value:
        int_op = unsigned if b.is_unsigned else signed
        return b.compare(float_op if b.dtype.is_float else int_op, x, y)

    return rule


def _extremum(ordered: str, signed: str, unsigned: str) -> _Rule:
    def rule(b: _OpBuilder, x: Value, y: Value) -> Value:
        if not b.dtype.is_float:
            return b.select(b.compare(unsigned if b.is_unsigned else signed, x, y), x, y)
        for constant, test in ((y, "u"), (x, "o")):
            if not constant.text.startswith("%") and "0x7FF8" not in constant.text:
                # this constant is not nan: the test keeps a nan of the other, and y if equal
                return b.select(b.compare(f"{test}{ordered}", x, y), x, y)
        larger = b.select(b.compare(f"o{ordered}", x, y), x, y)
        return b.select(b.compare("uno", x, x), x, larger)

    return rule


def _intrinsic(name: str) -> _Rule:
    def rule(b: _OpBuilder, x: Value, *rest: Value) -> Value:
        return b.intrinsic(name, x, *rest) if b.dtype.is_float else x

    return rule


def _neg(b: _OpBuilder, x: Value) -> Value:
    return -x if b.dtype.is_float else b.number(0) - x


def _abs(b: _OpBuilder, x: Value) -> Value:
    if b.dtype.is_float:
        return b.abs(x)
    if b.is_unsigned:
        return x
    ty = b.type(x.scalar)
    symbol = f"@llvm.abs.{b.suffix(x.scalar)}"
    return b.operand(b.f.call(symbol, ty, (ty, x.text), ("i1", "false")))


def _sign(b: _OpBuilder, x: Value) -> Value:
    if b.dtype is DType.BOOL:
        return x
    zero = b.number(0)
    above, below = _RULES["gt"](b, x, zero), _RULES["lt"](b, x, zero)
    return b.select(above, b.number(1), b.select(below, b.number(-1), zero))


def _nextafter(b: _OpBuilder, x: Value, y: Value) -> Value:
    """Step the bit pattern by one; bit patterns of floats are ordered like their magnitudes."""
    x_bits, y_bits = x.bits, y.bits
    grows = (x < y) ^ b.compare("slt", x_bits, 0)
    stepped = x_bits + b.select(grows, x_bits.const(1), -1)
    smallest = (y_bits & -x.format.sign_mask) | 1
    result = b.as_float(b.select(x.equals(0.0), smallest, stepped))
    result = b.select(x.equals(y), y, result)
    return b.select(b.compare("uno", x, y), x + y, result)


def _to_bool(b: _OpBuilder, x: Value) -> Value:
    return x if b.dtype is DType.BOOL else _RULES["ne"](b, x, b.number(0))


def _logical(op: str) -> _Rule:
    return lambda b, x, y: b.binary(op, _to_bool(b, x), _to_bool(b, y))


def _logical_not(b: _OpBuilder, x: Value) -> Value:
    return _to_bool(b, x) ^ b.value(literal(True, DType.BOOL, b.width), "i1")


def _where(b: _OpBuilder, condition: Value, x: Value, y: Value) -> Value:
    return b.select(b.value(condition.text, "i1"), x, y)


def _shift(left: bool) -> _Rule:
    def rule(b: _OpBuilder, x: Value, n: Value) -> Value:
        bits, zero = b.dtype.itemsize * 8, b.number(0)
        too_far = b.compare("uge", n, b.number(bits))
        if left:
            return b.select(too_far, zero, b.binary("shl", x, n))
        n = b.select(too_far, b.number(bits - 1), n)
        if b.dtype is not DType.U8:
            return b.binary("ashr", x, n)
        return b.select(too_far, zero, b.binary("lshr", x, n))

    return rule


def _truncdiv(b: _OpBuilder, x: Value, y: Value) -> Value:
    if b.dtype.is_float:
        return b.intrinsic("trunc", x / y)
    return b.binary("udiv" if b.dtype is DType.U8 else "sdiv", x, y)


def _fmod(b: _OpBuilder, x: Value, y: Value) -> Value:
    if b.dtype.is_float:
        return _math_call(b, "fmod", x, y)
    return b.binary("urem" if b.dtype is DType.U8 else "srem", x, y)


def _signs_differ(b: _OpBuilder, remainder: Value, divisor: Value) -> Value:
    """Return where a remainder is nonzero and its sign differs from the divisor's."""
    zero = b.number(0)
    nonzero = _RULES["ne"](b, remainder, zero)
    return nonzero & (_RULES["lt"](b, remainder, zero) ^ _RULES["lt"](b, divisor, zero))


def _remainder(b: _OpBuilder, x: Value, y: Value) -> Value:
    remainder = _fmod(b, x, y)
    corrected = remainder + y
    return b.select(_signs_differ(b, remainder, y), corrected, remainder)


def _floordiv(b: _OpBuilder, x: Value, y: Value) -> Value:
    remainder = _fmod(b, x, y)
    differ = _signs_differ(b, remainder, y)
    if not b.dtype.is_float:
        quotient = _truncdiv(b, x, y)
        return b.select(differ, quotient - b.number(1), quotient)
    # c10::div_floor_floating: divide x - remainder, then correct a quotient rounded down
    quotient = (x - remainder) / y
    quotient = b.select(differ, quotient - 1.0, quotient)
    floor = b.intrinsic("floor", quotient)
    floor = b.select(quotient - floor > 0.5, floor + 1.0, floor)
    exact_quotient = x / y
    signed_zero = b.copysign(b.number(0.0), exact_quotient)
    floor = b.select(quotient.equals(0.0), signed_zero, floor)
    return b.select(y.equals(0.0), exact_quotient, floor)


def _truncate(b: _OpBuilder, x: Value, scalar: str) -> Value:
    """Return a float as an integer; out of range, and for nan, what the processor returns.

    That is undefined in LLVM, which would fold it to anything.
    """
    if b.f.saturating_casts:
        symbol = f"@llvm.fptosi.sat.{b.suffix(scalar)}.{b.suffix(x.scalar)}"
        return b.value(b.f.call(symbol, b.type(scalar), (b.type(x.scalar), x.text)), scalar)
    limit = 1 << (int(scalar[1:]) - 1)
    return b.select(b.abs(x) < limit, b.cast("fptosi", x, scalar), -limit)


def _convert(b: _OpBuilder, x: Value) -> Value:
    source, to = b.dtype, b.result_dtype
    scalar = REGISTER_TYPES[to]
    if source.is_float and to.is_float:
        return b.cast("fpext" if to is DType.F64 else "fptrunc", x, scalar)
    if source.is_float:
        # C converts a float to a small integer by way of int, ATen to uint8 by way of int64; the
        # eight low bits of a float32 beyond int are 0 either way
        wide = to is DType.I64 or (source, to) == (DType.F64, DType.U8)
        whole = _truncate(b, x, "i64" if wide else "i32")
        return whole if whole.scalar == scalar else b.cast("trunc", whole, scalar)
    if to.is_float:
        return b.cast("uitofp" if b.is_unsigned else "sitofp", x, scalar)
    if x.scalar == scalar:
        return x
    if source.itemsize > to.itemsize and source is not DType.BOOL:
        return b.cast("trunc", x, scalar)
    return b.cast("zext" if b.is_unsigned else "sext", x, scalar)


def _round_to(dtype: DType) -> _Rule:
    return lambda b, x: round_to(b, x, dtype)


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
    "reciprocal": lambda b, x: 1.0 / x,
    "nextafter": _nextafter,
    "logical_and": _logical("and"),
    "logical_or": _logical("or"),
    "logical_xor": _logical("xor"),
    "logical_not": _logical_not,
    "bitwise_and": lambda b, x, y: x & y,
    "bitwise_or": lambda b, x, y: x | y,
    "bitwise_xor": lambda b, x, y: x ^ y,
    "bitwise_not": lambda b, x: x ^ b.number(b.dtype is DType.BOOL or -1),
    "shift_left": _shift(True),
    "shift_right": _shift(False),
    "isnan": lambda b, x: b.compare("uno", x, x),
    "isinf": lambda b, x: _abs(b, x).equals(math.inf),
    "where": _where,
    "truncdiv": _truncdiv,
    "fmod": _fmod,
    "remainder": _remainder,
    "floordiv": _floordiv,
    "convert": _convert,
    **{f"round_{d.value}": _round_to(d) for d in DType if d.is_reduced_float},
}
