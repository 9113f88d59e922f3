"""Vectors of float32 under masks, for the microkernel and for packing."""

from __future__ import annotations

from tofuse.backends.cpu.llvm.ir_text import FunctionBuilder, ramp, splat

LANES = 16
FLOAT_TY = f"<{LANES} x float>"
MASK_TY = f"<{LANES} x i1>"


def lanes_below(f: FunctionBuilder, count: str, first: int) -> str:
    """Return the mask of the lanes whose number, counted from `first`, is below a count."""
    ty = f"<{LANES} x i64>"
    counts = splat(f, count, "i64", LANES)
    return f.let(f"icmp sgt {ty} {counts}, {ramp('i64', first, LANES)}")


def mask_if(f: FunctionBuilder, condition: str, mask: str) -> str:
    """Return the mask, or an empty one if an i1 is false."""
    return f.let(f"select i1 {condition}, {MASK_TY} {mask}, {MASK_TY} zeroinitializer")


def load(f: FunctionBuilder, pointer: str, mask: str) -> str:
    """Load the lanes of the mask, zeros elsewhere.

    The address must be mapped even under an empty mask: a masked load of an unmapped page takes
    processors a hundred times as long.
    """
    symbol = f"@llvm.masked.load.v{LANES}f32.p0"
    address, zeros = ("ptr", f"align 4 {pointer}"), (FLOAT_TY, "zeroinitializer")
    return f.call(symbol, FLOAT_TY, address, (MASK_TY, mask), zeros)


def store(f: FunctionBuilder, value: str, pointer: str, mask: str | None = None) -> None:
    """Store all lanes, or those of the mask."""
    if mask is None:
        f.put(f"store {FLOAT_TY} {value}, ptr {pointer}, align 4")
        return
    symbol = f"@llvm.masked.store.v{LANES}f32.p0"
    f.call(symbol, "void", (FLOAT_TY, value), ("ptr", f"align 4 {pointer}"), (MASK_TY, mask))


def element_pointer(f: FunctionBuilder, base: str, index: str) -> str:
    """Return the address of an element of an array."""
    return f.let(f"getelementptr float, ptr {base}, i64 {index}")


def module_text(f: FunctionBuilder, head: str) -> str:
    """Return the text of a module with this one function."""
    declarations: dict[str, str] = {}
    text = function_text(f, head, declarations)
    return "\n".join([*declarations.values(), text])


def function_text(f: FunctionBuilder, head: str, declarations: dict[str, str]) -> str:
    """Return the text of a function; add what it calls to `declarations`."""
    declarations |= f.declarations
    return f.text(head)
