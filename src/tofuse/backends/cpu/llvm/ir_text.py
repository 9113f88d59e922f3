"""A builder for the text of one LLVM function: fresh names, calls, loops, branches, constants."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tofuse.ir.dims import Dim
from tofuse.ir.elements import ROUND
from tofuse.ir.types import DType

REGISTER_TYPES = {
    DType.F64: "double",
    DType.F32: "float",
    DType.I64: "i64",
    DType.I32: "i32",
    DType.I16: "i16",
    DType.I8: "i8",
    DType.U8: "i8",
    DType.BOOL: "i1",
}
# Attributes of a function whose loops may run out of vector registers. Without them LLVM aligns the
# stack to 16 bytes and spilled vectors cross cache lines: four times as slow where the stack frame
# crosses a page.
ALIGNED_STACK = 'alignstack(64) "stackrealign"'
MEMORY_TYPES = {**REGISTER_TYPES, DType.BOOL: "i8", DType.BF16: "i16", DType.F16: "half"}
MEMORY_TYPES |= {DType.F8E4M3: "i8", DType.F8E5M2: "i8"}


def vector_type(element: str, lanes: int) -> str:
    """Return the LLVM type of `lanes` elements; a plain scalar for one lane."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


def short_name(scalar: str) -> str:
    """Return the name of a type as intrinsics spell it."""
    return {"half": "f16", "float": "f32", "double": "f64"}.get(scalar, scalar)


def literal(value: bool | int | float, dtype: DType, lanes: int = 1) -> str:
    """Return a constant operand of the register type of `dtype`, without the type."""
    scalar = _scalar_literal(value, dtype)
    return scalar if lanes == 1 else f"splat ({REGISTER_TYPES[dtype]} {scalar})"


def _scalar_literal(value: bool | int | float, dtype: DType) -> str:
    if dtype is DType.BOOL:
        return "true" if value else "false"
    if dtype.is_float:
        return float_literal(value, REGISTER_TYPES[dtype])
    bits = dtype.itemsize * 8
    wrapped = int(value) & ((1 << bits) - 1)
    signed = wrapped - (1 << bits) if wrapped >> (bits - 1) and dtype is not DType.U8 else wrapped
    return str(signed)


def float_literal(value: float, scalar: str) -> str:
    """Return a constant; LLVM writes a float as the 64 bits of the double of the same value."""
    double = ROUND[DType.F32](value) if scalar == "float" else value
    return f"0x{struct.unpack('<Q', struct.pack('<d', double))[0]:016X}"


def ramp(element: str, first: int, lanes: int) -> str:
    """Return the constant vector of the integers from `first` on; a scalar for one lane."""
    if lanes == 1:
        return str(first)
    return f"<{', '.join(f'{element} {first + k}' for k in range(lanes))}>"


@dataclass(eq=False)
class FunctionBuilder:
    """The text of one function under construction.

    `contract` allows fused multiply-adds. `saturating_casts`: casts of floats out of an integer's
    range saturate; else they return its least number, as on x86. `native_bf16`: stores of
    bfloat16 round by the processor's instruction, which flushes subnormal numbers to zero.
    `declarations` are the texts of external functions by symbol, `math_calls` the vector math
    functions called, as (name, element type, lanes).
    `narrow_bits` maps a float32 operand and a narrower type to the bits that it came from or rounds
    to: an i32 of an fp8 type, an i16 of bfloat16.
    Results are named `prefix` and a number, counted from `first`; `label` is the current block.
    """

    contract: bool = True
    saturating_casts: bool = False
    native_bf16: bool = False
    entry: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    declarations: dict[str, str] = field(default_factory=dict)
    math_calls: dict[tuple[str, str, int], None] = field(default_factory=dict)
    narrow_bits: dict[tuple[str, DType], str] = field(default_factory=dict)
    full_masks: dict[int, str] = field(default_factory=dict)  # masks of all lanes, by lanes
    prefix: str = "%t"
    first: int = 1
    count: int = 0
    label: str = "start"

    def fresh_name(self) -> str:
        """Return a name that is not used yet."""
        self.count += 1
        return f"{self.prefix}{self.first + self.count - 1}"

    def fresh_label(self, stem: str) -> str:
        """Return a label that is not used yet."""
        self.count += 1
        return f"{stem}{self.count}"

    def put(self, line: str) -> None:
        """Append an instruction without a result."""
        self.lines.append(f"  {line}")

    def let(self, instruction: str) -> str:
        """Append an instruction and return the name of its result."""
        name = self.fresh_name()
        self.put(f"{name} = {instruction}")
        return name

    def hide_value(self, ty: str, value: str) -> str:
        """Return the same integer through an empty assembly, so that LLVM cannot fold it."""
        return self.let(f'call {ty} asm "", "=r,0"({ty} {value})')

    def alloca(self, ty: str) -> str:
        """Reserve a stack slot in the entry block and return its pointer."""
        name = self.fresh_name()
        self.entry.append(f"  {name} = alloca {ty}, align 64")
        return name

    def call(self, symbol: str, result: str, *args: tuple[str, str]) -> str:
        """Call an external function or intrinsic and declare it; `args` are (type, value) pairs."""
        types = ", ".join(ty for ty, _ in args)
        self.declarations[symbol] = f"declare {result} {symbol}({types})"
        text = f"call {result} {symbol}({', '.join(f'{ty} {v}' for ty, v in args)})"
        if result == "void":
            self.put(text)
            return ""
        return self.let(text)

    def shuffle(self, ty: str, a: str, b: str, lanes: Sequence[int]) -> str:
        """Return a vector of these lanes, counted over the vectors `a` and `b` of one type."""
        mask = ", ".join(f"i32 {k}" for k in lanes)
        return self.let(f"shufflevector {ty} {a}, {ty} {b}, <{len(lanes)} x i32> <{mask}>")

    def intersect(self, mask: str, other: str | None, lanes: int) -> str:
        """Return the lanes of both masks; None is the mask of all lanes."""
        if other is None:
            return mask
        return self.let(f"and {vector_type('i1', lanes)} {mask}, {other}")

    def load_mask(self, mask: str, lanes: int) -> str:
        """Return an equal mask that no other instruction uses; LLVM cannot tell that it is equal.

        LLVM 22 folds a masked load into a multiply-add if a select of its result has the same mask.
        When it splits the two again, it drops the load's mask, and reads past the end of memory.
        A comparison of vectors makes the mask, not an integer. LLVM widens a load of 8 bytes to 16
        and assumes that the upper 8 bits of the mask are 0. With an integer, they are not.
        """
        ty = vector_type("i1", lanes)
        if lanes not in self.full_masks:
            integers = vector_type("i32", lanes)
            count, name = self.fresh_name(), self.fresh_name()
            self.entry += [
                f'  {count} = call i32 asm "", "=r,0"(i32 {lanes})',
                f"  {name}.first = insertelement {integers} poison, i32 {count}, i64 0",
                f"  {name}.counts = shufflevector {integers} {name}.first, {integers} poison, "
                f"<{lanes} x i32> zeroinitializer",
                f"  {name} = icmp slt {integers} {ramp('i32', 0, lanes)}, {name}.counts",
            ]
            self.full_masks[lanes] = name
        return self.let(f"and {ty} {mask}, {self.full_masks[lanes]}")

    def any_lane(self, mask: str, lanes: int) -> str:
        """Return whether a mask has a lane, as an i1."""
        if lanes == 1:
            return mask
        mask_ty = vector_type("i1", lanes)
        return self.call(f"@llvm.vector.reduce.or.v{lanes}i1", "i1", (mask_ty, mask))

    def start_block(self, label: str) -> None:
        """Append a label; the lines that follow belong to its block."""
        self.lines.append(f"{label}:")
        self.label = label

    @contextmanager
    def loop(self, lo: str, hi: str, step: str) -> Iterator[str]:
        """Emit `for (i = lo; i < hi; i += step)` around the body, all in i64; yield i."""
        tag = self.fresh_label("l")
        i, predecessor = f"%{tag}.i", self.label
        self.put(f"br label %{tag}.head")
        self.start_block(f"{tag}.head")
        self.put(f"{i} = phi i64 [ {lo}, %{predecessor} ], [ {i}.next, %{tag}.latch ]")
        continues = self.let(f"icmp slt i64 {i}, {hi}")
        self.put(f"br i1 {continues}, label %{tag}.body, label %{tag}.exit")
        self.start_block(f"{tag}.body")
        yield i
        self.put(f"br label %{tag}.latch")
        self.start_block(f"{tag}.latch")
        self.put(f"{i}.next = add i64 {i}, {step}")
        self.put(f"br label %{tag}.head")
        self.start_block(f"{tag}.exit")

    @contextmanager
    def if_then(self, condition: str) -> Iterator[None]:
        """Run the body if an i1 is true."""
        tag = self.fresh_label("w")
        self.put(f"br i1 {condition}, label %{tag}.then, label %{tag}.done")
        self.start_block(f"{tag}.then")
        yield
        self.put(f"br label %{tag}.done")
        self.start_block(f"{tag}.done")

    def text(self, head: str, tail: str = "ret void") -> str:
        """Return the definition of the function; `head` is its signature, `tail` its terminator."""
        body = "\n".join([*self.entry, "  br label %start", "start:", *self.lines, f"  {tail}"])
        return f"{head} {{\nentry:\n{body}\n}}\n"


def size_operand(f: FunctionBuilder, dim: Dim, sizes: Mapping[str, str]) -> str:
    """Return a size as an i64 operand; `sizes` are the operands of symbols."""
    if isinstance(dim, int):
        return str(dim)
    total = ""
    for monomial, c in dim.terms:
        term = str(c)
        for s in monomial:
            term = f.let(f"mul i64 {term}, {sizes[s]}")
        total = f.let(f"add i64 {total}, {term}") if total else term
    return total


def splat(f: FunctionBuilder, scalar: str, element: str, lanes: int) -> str:
    """Return a vector with the scalar in every lane."""
    if lanes == 1:
        return scalar
    ty = vector_type(element, lanes)
    one = f.let(f"insertelement {ty} poison, {element} {scalar}, i64 0")
    zeros = f"<{lanes} x i32> zeroinitializer"
    return f.let(f"shufflevector {ty} {one}, {ty} poison, {zeros}")
