"""A builder of vector arithmetic as LLVM IR text, so that a function reads like its formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tofuse.backends.cpu.llvm.ir_text import (
    FunctionBuilder,
    float_literal,
    short_name,
    splat,
    vector_type,
)


@dataclass(frozen=True)
class Format:
    """An IEEE 754 binary format: its field sizes, its largest number, ln 2."""

    bits: int
    mantissa: int  # stored bits
    bias: int
    largest: float
    ln2: tuple[float, float]  # high and low part

    @property
    def sign_mask(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def one_bits(self) -> int:
        return self.bias << self.mantissa

    @property
    def smallest_normal(self) -> float:
        return 2.0 ** (1 - self.bias)


BY_SCALAR = {
    "float": Format(
        *(32, 23, 127, float.fromhex("0x1.fffffep+127")),
        ln2=(0.6931471824645996, -1.9046542121259336e-09),
    ),
    "double": Format(
        *(64, 52, 1023, float.fromhex("0x1.fffffffffffffp+1023")),
        ln2=(0.6931471805599453, 2.3190468138462996e-17),
    ),
}
SCALARS = {"f32": "float", "f64": "double"}
MAX_HORNER_TERMS = 8  # coefficients; longer polynomials are split to shorten the dependency chain


def _operator(opcode: str) -> Callable[[Value, Value | float], Value]:
    return lambda a, b: a.builder.binary(opcode, a, b)


def _arithmetic(name: str) -> Callable[[Value, Value | float], Value]:
    return lambda a, b: a.builder.arithmetic(name, a, b)


def _comparison(predicate: str) -> Callable[[Value, Value | float], Value]:
    return lambda a, b: a.builder.compare(predicate, a, b)


@dataclass(frozen=True, eq=False)
class Value:
    """An SSA value or a constant.

    Operators append instructions to the builder; numbers become splats.
    """

    builder: FormulaBuilder
    text: str
    scalar: str

    @property
    def format(self) -> Format:
        return BY_SCALAR[self.scalar]

    __add__ = _arithmetic("add")
    __sub__ = _arithmetic("sub")
    __mul__ = _arithmetic("mul")
    __truediv__ = _operator("fdiv")
    __and__ = _operator("and")
    __or__ = _operator("or")
    __xor__ = _operator("xor")
    __lshift__ = _operator("shl")
    __rshift__ = _operator("lshr")  # logical
    __lt__ = _comparison("olt")
    __le__ = _comparison("ole")
    __gt__ = _comparison("ogt")
    __ge__ = _comparison("oge")
    equals = _comparison("oeq")
    differs = _comparison("une")  # `a != b` as C defines it: true for nan

    def __rsub__(self, other: float) -> Value:
        return self.const(other) - self

    def __rtruediv__(self, other: float) -> Value:
        return self.const(other) / self

    def __neg__(self) -> Value:
        return self.builder.emit(f"fneg {self.typed}", self.scalar)

    def __invert__(self) -> Value:
        return self ^ 1 if self.scalar == "i1" else self ^ -1

    @property
    def typed(self) -> str:
        return f"{self.builder.type(self.scalar)} {self.text}"

    @property
    def bits(self) -> Value:
        return self.builder.cast("bitcast", self, f"i{self.format.bits}")

    @property
    def sign(self) -> Value:
        """Return the sign bit alone, as an integer."""
        return self.bits & self.format.sign_mask

    @property
    def negative(self) -> Value:
        """Return whether the sign bit is set; true for -0.0."""
        return self.builder.compare("slt", self.bits, 0)

    def const(self, number: float) -> Value:
        """Return a constant of this value's type."""
        return self.builder.const(number, self.scalar)


class FormulaBuilder:
    """Appends arithmetic on vectors of `width` lanes to a function; 1 means plain scalars.

    `avx512` says that the processor has that extension.
    """

    def __init__(self, f: FunctionBuilder, width: int, avx512: bool = False) -> None:
        self.f, self.width, self.avx512 = f, width, avx512

    def type(self, scalar: str) -> str:
        return vector_type(scalar, self.width)

    def suffix(self, scalar: str) -> str:
        return short_name(scalar) if self.width == 1 else f"v{self.width}{short_name(scalar)}"

    def value(self, text: str, scalar: str) -> Value:
        return Value(self, text, scalar)

    def const(self, number: float, scalar: str) -> Value:
        text = float_literal(number, scalar) if scalar in BY_SCALAR else str(int(number))
        return self.value(text if self.width == 1 else f"splat ({scalar} {text})", scalar)

    def emit(self, instruction: str, scalar: str) -> Value:
        return self.value(self.f.let(instruction), scalar)

    def binary(self, opcode: str, a: Value, b: Value | float) -> Value:
        return self.emit(f"{opcode} {a.typed}, {_operand(b, a).text}", a.scalar)

    def arithmetic(self, name: str, a: Value, b: Value | float) -> Value:
        return self.binary(f"f{name}" if a.scalar in BY_SCALAR else name, a, b)

    def compare(self, predicate: str, a: Value, b: Value | float) -> Value:
        opcode = "fcmp" if a.scalar in BY_SCALAR else "icmp"
        return self.emit(f"{opcode} {predicate} {a.typed}, {_operand(b, a).text}", "i1")

    def cast(self, opcode: str, a: Value, scalar: str) -> Value:
        return self.emit(f"{opcode} {a.typed} to {self.type(scalar)}", scalar)

    def as_float(self, a: Value) -> Value:
        """Return the float whose bits are an integer."""
        return self.cast("bitcast", a, "float" if a.scalar == "i32" else "double")

    def widen(self, a: Value) -> Value:
        return self.cast("fpext", a, "double")

    def narrow(self, a: Value) -> Value:
        return self.cast("fptrunc", a, "float")

    def intrinsic(self, name: str, first: Value, *rest: Value | float) -> Value:
        """Call an overloaded LLVM intrinsic whose operands and result have one type."""
        symbol = f"@llvm.{name}.{self.suffix(first.scalar)}"
        ty = self.type(first.scalar)
        operands = (first, *(_operand(v, first) for v in rest))
        return self.value(self.f.call(symbol, ty, *((ty, v.text) for v in operands)), first.scalar)

    def fma(self, a: Value, b: Value | float, c: Value | float) -> Value:
        return self.intrinsic("fma", a, b, c)

    def has_scalef(self, scalar: str) -> bool:
        """Return whether the processor has `scalef` as one instruction of this width."""
        return self.avx512 and self.width * BY_SCALAR[scalar].bits == 512

    def scalef(self, a: Value, n: Value, nonzero_lanes: Value | None = None) -> Value:
        """Return a * 2^n, rounded once, by one AVX-512 instruction; 0 outside `nonzero_lanes`."""
        ty, suffix = self.type(a.scalar), "ps" if a.scalar == "float" else "pd"
        symbol, mask_ty = f"@llvm.x86.avx512.mask.scalef.{suffix}.512", f"i{max(8, self.width)}"
        mask = "-1"
        if nonzero_lanes is not None:
            mask = self.emit(f"bitcast {nonzero_lanes.typed} to {mask_ty}", "i1").text
        rounding = "i32", "4"  # as set
        operands = (ty, a.text), (ty, n.text), (ty, "zeroinitializer"), (mask_ty, mask), rounding
        return self.value(self.f.call(symbol, ty, *operands), a.scalar)

    def abs(self, a: Value) -> Value:
        return self.intrinsic("fabs", a)

    def copysign(self, magnitude: Value, sign: Value) -> Value:
        return self.intrinsic("copysign", magnitude, sign)

    def flip_sign(self, a: Value, sign_bits: Value) -> Value:
        """Return `a`, negated where the integers `sign_bits` have the sign bit set."""
        return self.as_float(a.bits ^ sign_bits)

    def select(self, mask: Value, a: Value | float, b: Value | float) -> Value:
        if isinstance(a, Value):
            template = a
        else:
            assert isinstance(b, Value), "one arm of a select gives the type"
            template = b
        arms = f"{_operand(a, template).typed}, {_operand(b, template).typed}"
        return self.emit(f"select {mask.typed}, {arms}", template.scalar)

    def clamp_max(self, a: Value, bound: Value | float) -> Value:
        """Return min(a, bound); a nan `a` stays nan. The operand order is that of x86's `minps`."""
        limit = _operand(bound, a)
        return self.select(limit < a, limit, a)

    def clamp_min(self, a: Value, bound: Value | float) -> Value:
        """Return max(a, bound); a nan `a` stays nan."""
        limit = _operand(bound, a)
        return self.select(limit > a, limit, a)

    def horner(self, x: Value, coefficients: Sequence[float]) -> Value:
        """Evaluate the polynomial with `coefficients`, lowest degree first.

        A long polynomial is evaluated, but for its last step, as two polynomials in x^2 of the even
        and the odd powers, which halves the length of the dependency chain.
        """
        if len(coefficients) > MAX_HORNER_TERMS:
            first, *rest = coefficients
            odd = self.horner(x * x, rest[1::2])
            even = self.horner(x * x, rest[::2])
            return self.fma(self.fma(odd, x, even), x, first)
        total = x.const(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            total = self.fma(total, x, c)
        return total

    def two_sum(self, a: Value, b: Value | float) -> tuple[Value, Value]:
        """Return (s, e) with s + e = a + b exactly.

        Knuth, TAOCP volume 2, section 4.2.2, theorem B.
        """
        b = _operand(b, a)
        total = a + b
        b_rounded = total - a
        return total, (a - (total - b_rounded)) + (b - b_rounded)

    def fast_two_sum(self, a: Value, b: Value) -> tuple[Value, Value]:
        """Return (s, e) with s + e = a + b exactly, for |a| >= |b| (Dekker 1971)."""
        total = a + b
        return total, b - (total - a)

    def two_product(self, a: Value, b: Value | float) -> tuple[Value, Value]:
        """Return (p, e) with p + e = a * b exactly."""
        product = a * b
        return product, self.fma(a, b, -product)

    def branch_if_any(
        self, mask: Value, common: tuple[Value, ...], slow: Callable[[], tuple[Value, ...]]
    ) -> tuple[Value, ...]:
        """Return `common`, or the results of `slow()` under a branch if any lane of `mask` is set.

        All lanes take the results of `slow`, so they must equal `common` where `mask` is not set.
        """
        f = self.f
        any_set = f.any_lane(mask.text, self.width)
        any_set = f.call("@llvm.expect.i1", "i1", ("i1", any_set), ("i1", "false"))
        common_block, rare, after = f.label, f.fresh_label("rare"), f.fresh_label("after")
        f.put(f"br i1 {any_set}, label %{rare}, label %{after}")
        f.start_block(rare)
        slow_results = slow()
        slow_block = f.label
        f.put(f"br label %{after}")
        f.start_block(after)
        results = []
        for c, r in zip(common, slow_results, strict=True):
            arms = f"[ {c.text}, %{common_block} ], [ {r.text}, %{slow_block} ]"
            results.append(self.emit(f"phi {self.type(c.scalar)} {arms}", c.scalar))
        return tuple(results)

    def call_rarely(
        self, name: str, x: Value, formula: Callable[[FormulaBuilder, Value], tuple[Value, ...]]
    ) -> tuple[Value, ...]:
        """Return the results of a formula from a function of its own, which is not inlined.

        It is for rare arguments. Other formulas are inlined at each call, which repeats their code.
        """
        body = function_body()
        b = FormulaBuilder(body, self.width, self.avx512)
        results = formula(b, b.value("%x", x.scalar))
        symbol, total = math_symbol(name, short_name(x.scalar), self.width), "poison"
        ty = f"{{ {', '.join(self.type(r.scalar) for r in results)} }}"
        for k, r in enumerate(results):
            total = body.let(f"insertvalue {ty} {total}, {r.typed}, {k}")
        head = f"define internal {ty} {symbol}({self.type(x.scalar)} %x)"
        lines = [f"{head} noinline cold nounwind memory(none) {{", "entry:", *body.lines]
        self.f.declarations |= body.declarations
        self.f.declarations[symbol] = "\n".join([*lines, f"  ret {ty} {total}", "}", ""])
        found = self.f.let(f"call {ty} {symbol}({x.typed})")
        return tuple(
            self.emit(f"extractvalue {ty} {found}, {k}", r.scalar) for k, r in enumerate(results)
        )

    def fold_table(
        self,
        table: str,
        count: int,
        start: tuple[Value, ...],
        step: Callable[[Value, tuple[Value, ...]], tuple[Value, ...]],
    ) -> tuple[Value, ...]:
        """Fold `step` over the first `count` doubles of the constant array `table`, in a loop."""
        f = self.f
        before, body, after = f.label, f.fresh_label("loop"), f.fresh_label("after")
        f.put(f"br label %{body}")
        f.start_block(body)
        phi_line = len(f.lines)
        index = self.emit("", "i64")
        carried = tuple(self.emit("", v.scalar) for v in start)
        pointer = f.let(f"getelementptr double, ptr {table}, i64 {index.text}")
        term = splat(f, f.let(f"load double, ptr {pointer}"), "double", self.width)
        results = step(self.value(term, "double"), carried)
        next_index = f.let(f"add i64 {index.text}, 1")
        continues = f.let(f"icmp ult i64 {next_index}, {count}")
        f.put(f"br i1 {continues}, label %{body}, label %{after}")
        first = f"[ 0, %{before} ], [ {next_index}, %{f.label} ]"
        f.lines[phi_line] = f"  {index.text} = phi i64 {first}"
        for i, (phi, old, new) in enumerate(
            zip(carried, start, results, strict=True), phi_line + 1
        ):
            arms = f"[ {old.text}, %{before} ], [ {new.text}, %{f.label} ]"
            f.lines[i] = f"  {phi.text} = phi {self.type(phi.scalar)} {arms}"
        f.start_block(after)
        return results


def _operand(value: Value | float, template: Value) -> Value:
    return value if isinstance(value, Value) else template.const(value)


def math_symbol(name: str, elem: str, width: int) -> str:
    """Return the symbol of a function over `width` lanes."""
    lanes = "" if width == 1 else f"v{width}"
    return f"@tofuse.{name}.{lanes}{elem}"


def function_body() -> FunctionBuilder:
    """Return a builder for a function of `definition`."""
    return FunctionBuilder(prefix="%v", first=0, label="entry")


def definition(
    f: FunctionBuilder, symbol: str, ty: str, arguments: Sequence[str], result: str
) -> str:
    """Return the text of a function that is inlined; its operands and its result have one type."""
    parameters = ", ".join(f"{ty} {x}" for x in arguments)
    head = f"define internal {ty} {symbol}({parameters}) alwaysinline nounwind"
    return "\n".join([f"{head} {{", "entry:", *f.lines, f"  ret {ty} {result}", "}", ""])
