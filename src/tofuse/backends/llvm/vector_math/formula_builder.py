"""Writes vector arithmetic as LLVM IR text, so that a function reads as its formula."""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """An IEEE 754 binary format: its LLVM names, the size of its fields, its largest number."""

    scalar: str
    suffix: str
    integer: str
    bits: int
    mantissa: int  # stored bits
    bias: int
    largest: float

    @property
    def sign_mask(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def one_bits(self) -> int:
        return self.bias << self.mantissa

    @property
    def smallest_normal(self) -> float:
        return 2.0 ** (1 - self.bias)


FLOAT = Format("float", "f32", "i32", 32, 23, 127, float.fromhex("0x1.fffffep+127"))
DOUBLE = Format("double", "f64", "i64", 64, 52, 1023, float.fromhex("0x1.fffffffffffffp+1023"))
FORMATS = {"f32": FLOAT, "f64": DOUBLE}
BY_SCALAR = {"float": FLOAT, "double": DOUBLE}
SUFFIX = {"float": "f32", "double": "f64", "i64": "i64", "i32": "i32", "i1": "i1"}
LONG = 8  # coefficients of a polynomial that one chain of additions does not keep busy
INFIX = {
    "add": ("fadd", "add"),
    "sub": ("fsub", "sub"),
    "mul": ("fmul", "mul"),
}


@dataclass(frozen=True, eq=False)
class Value:
    """An SSA value or a constant; operators append to the builder, numbers become splats."""

    builder: "Builder"
    text: str
    scalar: str

    @property
    def format(self) -> Format:
        return BY_SCALAR[self.scalar]

    def __add__(self, other: "Value | float") -> "Value":
        return self.builder.infix("add", self, other)

    def __sub__(self, other: "Value | float") -> "Value":
        return self.builder.infix("sub", self, other)

    def __mul__(self, other: "Value | float") -> "Value":
        return self.builder.infix("mul", self, other)

    def __rsub__(self, other: float) -> "Value":
        return self.like(other) - self

    def __truediv__(self, other: "Value | float") -> "Value":
        return self.builder.binary("fdiv", self, other)

    def __rtruediv__(self, other: float) -> "Value":
        return self.like(other) / self

    def __and__(self, other: "Value | int") -> "Value":
        return self.builder.binary("and", self, other)

    def __or__(self, other: "Value | int") -> "Value":
        return self.builder.binary("or", self, other)

    def __xor__(self, other: "Value | int") -> "Value":
        return self.builder.binary("xor", self, other)

    def __lshift__(self, count: int) -> "Value":
        return self.builder.binary("shl", self, count)

    def __rshift__(self, count: int) -> "Value":
        """Logical for the callers here: `ashr` has its own method."""
        return self.builder.binary("lshr", self, count)

    def ashr(self, count: int) -> "Value":
        return self.builder.binary("ashr", self, count)

    def __neg__(self) -> "Value":
        return self.builder.emit(f"fneg {self.typed}", self.scalar)

    def __invert__(self) -> "Value":
        return self ^ 1 if self.scalar == "i1" else self ^ -1

    def __lt__(self, other: "Value | float") -> "Value":
        return self.builder.compare("olt", self, other)

    def __le__(self, other: "Value | float") -> "Value":
        return self.builder.compare("ole", self, other)

    def __gt__(self, other: "Value | float") -> "Value":
        return self.builder.compare("ogt", self, other)

    def __ge__(self, other: "Value | float") -> "Value":
        return self.builder.compare("oge", self, other)

    def equals(self, other: "Value | float") -> "Value":
        return self.builder.compare("oeq", self, other)

    def differs(self, other: "Value | float") -> "Value":
        """True for nan, as C's `!=`."""
        return self.builder.compare("une", self, other)

    @property
    def is_nan(self) -> "Value":
        return self.builder.compare("uno", self, self)

    @property
    def typed(self) -> str:
        return f"{self.builder.type(self.scalar)} {self.text}"

    @property
    def bits(self) -> "Value":
        return self.builder.cast("bitcast", self, self.format.integer)

    @property
    def sign(self) -> "Value":
        """The sign bit alone, as an integer."""
        return self.bits & self.format.sign_mask

    @property
    def negative(self) -> "Value":
        """Whether the sign bit is set, of -0.0 too."""
        return self.builder.compare("slt", self.bits, 0)

    def like(self, number: float) -> "Value":
        return self.builder.const(number, self.scalar)


class Builder:
    """Collects the body of one function over vectors of `width` lanes (1: plain scalars).

    `avx512` says that the processor has that extension.
    """

    def __init__(self, width: int, avx512: bool = False) -> None:
        self.width, self.avx512 = width, avx512
        self.lines: list[str] = []
        self.globals: dict[str, str] = {}
        self._block = "entry"
        self._count = 0

    def type(self, scalar: str) -> str:
        return scalar if self.width == 1 else f"<{self.width} x {scalar}>"

    def suffix(self, scalar: str) -> str:
        return SUFFIX[scalar] if self.width == 1 else f"v{self.width}{SUFFIX[scalar]}"

    def value(self, text: str, scalar: str) -> Value:
        return Value(self, text, scalar)

    def const(self, number: float, scalar: str) -> Value:
        text = literal(number, scalar)
        return self.value(text if self.width == 1 else f"splat ({scalar} {text})", scalar)

    def emit(self, instruction: str, scalar: str) -> Value:
        name = f"%v{self._count}"
        self._count += 1
        self.lines.append(f"  {name} = {instruction}")
        return self.value(name, scalar)

    def binary(self, opcode: str, a: Value, b: Value | float) -> Value:
        return self.emit(f"{opcode} {a.typed}, {_operand(b, a).text}", a.scalar)

    def infix(self, name: str, a: Value, b: Value | float) -> Value:
        return self.binary(INFIX[name][a.scalar not in BY_SCALAR], a, b)

    def compare(self, predicate: str, a: Value, b: Value | float) -> Value:
        opcode = "fcmp" if a.scalar in BY_SCALAR else "icmp"
        return self.emit(f"{opcode} {predicate} {a.typed}, {_operand(b, a).text}", "i1")

    def cast(self, opcode: str, a: Value, scalar: str) -> Value:
        return self.emit(f"{opcode} {a.typed} to {self.type(scalar)}", scalar)

    def as_float(self, a: Value) -> Value:
        """The number an integer is the bits of."""
        return self.cast("bitcast", a, "float" if a.scalar == "i32" else "double")

    def widen(self, a: Value) -> Value:
        return self.cast("fpext", a, "double")

    def narrow(self, a: Value) -> Value:
        return self.cast("fptrunc", a, "float")

    def intrinsic(self, name: str, first: Value, *rest: Value | float) -> Value:
        """Call an overloaded LLVM intrinsic all of whose operands and result have one type."""
        symbol = f"@llvm.{name}.{self.suffix(first.scalar)}"
        kind = self.type(first.scalar)
        operands = (first, *(_operand(v, first) for v in rest))
        self.globals[symbol] = f"declare {kind} {symbol}({', '.join(kind for _ in operands)})"
        arguments = ", ".join(v.typed for v in operands)
        return self.emit(f"call {kind} {symbol}({arguments})", first.scalar)

    def fma(self, a: Value, b: Value | float, c: Value | float) -> Value:
        return self.intrinsic("fma", a, b, c)

    def whole_scalef(self, scalar: str) -> bool:
        """Whether `scalef` is one instruction of this processor."""
        return self.avx512 and self.width * BY_SCALAR[scalar].bits == 512

    def scalef(self, a: Value, n: Value, seen: Value | None = None) -> Value:
        """a * 2^n, rounded once, in 512 bits of AVX-512; 0 where it is not `seen`."""
        kind, form = self.type(a.scalar), "ps" if a.scalar == "float" else "pd"
        symbol, bits = f"@llvm.x86.avx512.mask.scalef.{form}.512", f"i{max(8, self.width)}"
        self.globals[symbol] = f"declare {kind} {symbol}({kind}, {kind}, {kind}, {bits}, i32)"
        lanes = "-1" if seen is None else self.emit(f"bitcast {seen.typed} to {bits}", "i1").text
        rest = f"{kind} zeroinitializer, {bits} {lanes}, i32 4"  # rounding as set
        return self.emit(f"call {kind} {symbol}({a.typed}, {n.typed}, {rest})", a.scalar)

    def abs(self, a: Value) -> Value:
        return self.intrinsic("fabs", a)

    def sqrt(self, a: Value) -> Value:
        return self.intrinsic("sqrt", a)

    def rint(self, a: Value) -> Value:
        return self.intrinsic("rint", a)

    def copysign(self, magnitude: Value, sign: Value) -> Value:
        return self.intrinsic("copysign", magnitude, sign)

    def flip_sign(self, a: Value, sign_bits: Value) -> Value:
        """`a`, negated where `sign_bits` (integers) has the sign bit set."""
        return self.as_float(a.bits ^ sign_bits)

    def select(self, mask: Value, a: Value | float, b: Value | float) -> Value:
        if isinstance(a, Value):
            like = a
        else:
            assert isinstance(b, Value), "one arm of a select gives the type"
            like = b
        arms = f"{_operand(a, like).typed}, {_operand(b, like).typed}"
        return self.emit(f"select {mask.typed}, {arms}", like.scalar)

    def at_most(self, a: Value, bound: Value | float) -> Value:
        """min(a, bound); a nan `a` stays nan. The order of operands is that of x86's `minps`."""
        limit = _operand(bound, a)
        return self.select(limit < a, limit, a)

    def at_least(self, a: Value, bound: Value | float) -> Value:
        """max(a, bound); a nan `a` stays nan."""
        limit = _operand(bound, a)
        return self.select(limit > a, limit, a)

    def horner(self, x: Value, coefficients: Sequence[float]) -> Value:
        """The polynomial with `coefficients`, lowest degree first.

        A long one but for its last step as two in x^2, of even and of odd powers: half the time
        to wait for one multiplication after the other.
        """
        if len(coefficients) > LONG:
            first, *rest = coefficients
            odd = self.horner(x * x, rest[1::2])
            even = self.horner(x * x, rest[::2])
            return self.fma(self.fma(odd, x, even), x, first)
        total = x.like(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            total = self.fma(total, x, c)
        return total

    def two_sum(self, a: Value, b: Value | float) -> tuple[Value, Value]:
        """(s, e) with s + e = a + b exactly: Knuth, TAOCP volume 2, section 4.2.2, theorem B."""
        b = _operand(b, a)
        total = a + b
        seen = total - a
        return total, (a - (total - seen)) + (b - seen)

    def fast_two_sum(self, a: Value, b: Value) -> tuple[Value, Value]:
        """The same where |a| >= |b| (Dekker 1971)."""
        total = a + b
        return total, b - (total - a)

    def two_product(self, a: Value, b: Value | float) -> tuple[Value, Value]:
        """(p, e) with p + e = a * b exactly."""
        product = a * b
        return product, self.fma(a, b, -product)

    def rarely(
        self, mask: Value, common: tuple[Value, ...], slow: Callable[[], tuple[Value, ...]]
    ) -> tuple[Value, ...]:
        """`common`, but `slow()`, under a branch, where any lane of `mask` is set.

        All lanes take what `slow` gives, so it has to give `common` where `mask` is not set.
        """
        flag = mask.text
        if self.width > 1:
            symbol = f"@llvm.vector.reduce.or.v{self.width}i1"
            self.globals[symbol] = f"declare i1 {symbol}({self.type('i1')})"
            flag = self.emit(f"call i1 {symbol}({mask.typed})", "i1").text
        self.globals["@llvm.expect.i1"] = "declare i1 @llvm.expect.i1(i1, i1)"
        flag = self.emit(f"call i1 @llvm.expect.i1(i1 {flag}, i1 false)", "i1").text
        before, rare, after = self._block, self._label("rare"), self._label("after")
        self.lines.append(f"  br i1 {flag}, label %{rare}, label %{after}")
        self._start(rare)
        results = slow()
        last = self._block
        self.lines.append(f"  br label %{after}")
        self._start(after)
        return tuple(
            self.emit(
                f"phi {self.type(c.scalar)} [ {c.text}, %{before} ], [ {r.text}, %{last} ]",
                c.scalar,
            )
            for c, r in zip(common, results, strict=True)
        )

    def sum_over_table(
        self,
        table: str,
        count: int,
        start: tuple[Value, ...],
        step: Callable[[Value, tuple[Value, ...]], tuple[Value, ...]],
    ) -> tuple[Value, ...]:
        """Fold `step` over the first `count` doubles of the constant array `table`, as a loop."""
        before, head, after = self._block, self._label("loop"), self._label("after")
        self.lines.append(f"  br label %{head}")
        self._start(head)
        phis = len(self.lines)
        index = self.emit("", "i64")
        carried = tuple(self.emit("", v.scalar) for v in start)
        slot = self.emit(f"getelementptr double, ptr {table}, i64 {index.text}", "i64").text
        term = self._splat(self.emit(f"load double, ptr {slot}", "double"))
        stepped = step(term, carried)
        following = self.emit(f"add i64 {index.text}, 1", "i64")
        more = self.emit(f"icmp ult i64 {following.text}, {count}", "i1").text
        self.lines.append(f"  br i1 {more}, label %{head}, label %{after}")
        first = f"[ 0, %{before} ], [ {following.text}, %{self._block} ]"
        self.lines[phis] = f"  {index.text} = phi i64 {first}"
        for i, (phi, old, new) in enumerate(zip(carried, start, stepped, strict=True), phis + 1):
            arms = f"[ {old.text}, %{before} ], [ {new.text}, %{self._block} ]"
            self.lines[i] = f"  {phi.text} = phi {self.type(phi.scalar)} {arms}"
        self._start(after)
        return stepped

    def _splat(self, scalar: Value) -> Value:
        if self.width == 1:
            return scalar
        kind = self.type(scalar.scalar)
        lane = self.emit(f"insertelement {kind} poison, double {scalar.text}, i64 0", "double")
        mask = f"<{self.width} x i32> zeroinitializer"
        return self.emit(f"shufflevector {lane.typed}, {kind} poison, {mask}", "double")

    def _label(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def _start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self._block = label


def _operand(value: Value | float, like: Value) -> Value:
    return value if isinstance(value, Value) else like.like(value)


def literal(number: float, scalar: str) -> str:
    """LLVM writes a float, too, as the 64 bits of the double of the same value."""
    if scalar not in BY_SCALAR:
        return str(int(number))
    if scalar == "float":
        number = struct.unpack("<f", struct.pack("<f", number))[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"
