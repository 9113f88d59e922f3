"""Vectors of float32 under masks: what the kernel and the packing have in common."""

from __future__ import annotations

from tofuse.backends.llvm.ir_text import Function

LANES = 16
FLOATS = f"<{LANES} x float>"
MASK = f"<{LANES} x i1>"


def below(f: Function, count: str, first: int) -> str:
    """The lanes whose number, counted from `first` on, is below a count."""
    kind = f"<{LANES} x i64>"
    head = f.let(f"insertelement {kind} poison, i64 {count}, i64 0")
    numbers = ", ".join(f"i64 {first + k}" for k in range(LANES))
    return f.let(f"icmp sgt {kind} {spread(f, kind, head)}, <{numbers}>")


def spread(f: Function, kind: str, head: str) -> str:
    """The first lane in all lanes."""
    return f.let(f"shufflevector {kind} {head}, {kind} poison, <{LANES} x i32> zeroinitializer")


def only_if(f: Function, condition: str, mask: str) -> str:
    """The mask, empty where an i1 is false."""
    return f.let(f"select i1 {condition}, {MASK} {mask}, {MASK} zeroinitializer")


def load(f: Function, pointer: str, mask: str) -> str:
    """The lanes of the mask, zeros elsewhere.

    The address must be of memory even under an empty mask: to find out that none of a page is
    wanted, processors take a hundred times as long.
    """
    symbol = f"@llvm.masked.load.v{LANES}f32.p0"
    f.declared[symbol] = f"declare {FLOATS} {symbol}(ptr, i32, {MASK}, {FLOATS})"
    return f.let(
        f"call {FLOATS} {symbol}(ptr {pointer}, i32 4, {MASK} {mask}, {FLOATS} zeroinitializer)"
    )


def store(f: Function, value: str, pointer: str, mask: str | None = None) -> None:
    """Write all lanes, or those of the mask."""
    if mask is None:
        f.put(f"store {FLOATS} {value}, ptr {pointer}, align 4")
        return
    symbol = f"@llvm.masked.store.v{LANES}f32.p0"
    f.declared[symbol] = f"declare void {symbol}({FLOATS}, ptr, i32, {MASK})"
    f.put(f"call void {symbol}({FLOATS} {value}, ptr {pointer}, i32 4, {MASK} {mask})")


def element(f: Function, base: str, index: str) -> str:
    """Where an element of an array is."""
    return f.let(f"getelementptr float, ptr {base}, i64 {index}")


def module(f: Function, head: str) -> str:
    """The text of a module with the one function."""
    return "\n".join([*f.declared.values(), f.text(head)])
