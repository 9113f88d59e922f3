"""LLVM IR as text: one growing function, fresh names, loops and constants."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tofuse.ir.types import DType

REGISTER = {
    DType.F64: "double",
    DType.F32: "float",
    DType.I64: "i64",
    DType.I32: "i32",
    DType.I16: "i16",
    DType.I8: "i8",
    DType.U8: "i8",
    DType.BOOL: "i1",
}
# Attributes of a function whose loops may run out of vector registers. Without them LLVM keeps what
# it spills on a stack of 16 bytes: across lines of the cache, and where the frame happens to lie
# across two pages four times as slow.
VECTORS_ON_STACK = 'alignstack(64) "stackrealign"'
MEMORY = {**REGISTER, DType.BOOL: "i8", DType.BF16: "i16", DType.F16: "half"}
MEMORY |= {DType.F8E4M3: "i8", DType.F8E5M2: "i8"}


def vector(element: str, lanes: int) -> str:
    """The LLVM type of `lanes` elements; a plain scalar for one."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


def literal(value: bool | int | float, dtype: DType, lanes: int = 1) -> str:
    """A constant operand of that register type, without its type."""
    scalar = _scalar_literal(value, dtype)
    return scalar if lanes == 1 else f"splat ({REGISTER[dtype]} {scalar})"


def _scalar_literal(value: bool | int | float, dtype: DType) -> str:
    if dtype is DType.BOOL:
        return "true" if value else "false"
    if dtype is DType.F64:
        return f"0x{struct.unpack('<Q', struct.pack('<d', float(value)))[0]:016X}"
    if dtype is DType.F32:
        return f"0x{struct.unpack('<Q', struct.pack('<d', _to_f32(float(value))))[0]:016X}"
    bits = dtype.itemsize * 8
    wrapped = int(value) & ((1 << bits) - 1)
    signed = wrapped - (1 << bits) if wrapped >> (bits - 1) and dtype is not DType.U8 else wrapped
    return str(signed)


def _to_f32(value: float) -> float:
    """Rounded to float32, to infinity where it is too large."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


@dataclass(eq=False)
class Function:
    """The text of one function under construction. `contract` allows fused multiply-adds."""

    contract: bool = True
    entry: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    declared: dict[str, str] = field(default_factory=dict)
    math: dict[tuple[str, str, int], None] = field(default_factory=dict)
    bytes: dict[tuple[str, DType], str] = field(default_factory=dict)  # that values were or become
    count: int = 0
    label: str = "start"

    def fresh(self) -> str:
        self.count += 1
        return f"%t{self.count}"

    def put(self, line: str) -> None:
        self.lines.append(f"  {line}")

    def let(self, right: str) -> str:
        name = self.fresh()
        self.put(f"{name} = {right}")
        return name

    def opaque(self, kind: str, value: str) -> str:
        """The same integer, of which LLVM knows nothing: an empty assembly that returns it."""
        return self.let(f'call {kind} asm "", "=r,0"({kind} {value})')

    def alloca(self, kind: str) -> str:
        name = self.fresh()
        self.entry.append(f"  {name} = alloca {kind}, align 64")
        return name

    def call(self, symbol: str, result: str, *args: tuple[str, str]) -> str:
        """Call an external function or intrinsic, declaring it: args are (type, value)."""
        kinds = ", ".join(kind for kind, _ in args)
        self.declared[symbol] = f"declare {result} {symbol}({kinds})"
        text = f"call {result} {symbol}({', '.join(f'{k} {v}' for k, v in args)})"
        if result == "void":
            self.put(text)
            return ""
        return self.let(text)

    def start_block(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.label = label

    @contextmanager
    def loop(self, lo: str, hi: str, step: str) -> Iterator[str]:
        """for (i = lo; i < hi; i += step), all i64; yields i."""
        self.count += 1
        tag = f"l{self.count}"
        i, before = f"%{tag}.i", self.label
        self.put(f"br label %{tag}.head")
        self.start_block(f"{tag}.head")
        self.put(f"{i} = phi i64 [ {lo}, %{before} ], [ {i}.next, %{tag}.latch ]")
        go = self.let(f"icmp slt i64 {i}, {hi}")
        self.put(f"br i1 {go}, label %{tag}.body, label %{tag}.exit")
        self.start_block(f"{tag}.body")
        yield i
        self.put(f"br label %{tag}.latch")
        self.start_block(f"{tag}.latch")
        self.put(f"{i}.next = add i64 {i}, {step}")
        self.put(f"br label %{tag}.head")
        self.start_block(f"{tag}.exit")

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """Run the body where an i1 is true."""
        self.count += 1
        tag = f"w{self.count}"
        self.put(f"br i1 {condition}, label %{tag}.then, label %{tag}.done")
        self.start_block(f"{tag}.then")
        yield
        self.put(f"br label %{tag}.done")
        self.start_block(f"{tag}.done")

    def text(self, head: str, tail: str = "ret void") -> str:
        body = "\n".join([*self.entry, "  br label %start", "start:", *self.lines, f"  {tail}"])
        return f"{head} {{\nentry:\n{body}\n}}\n"
