"""Copies a block of an operand into slabs: what the kernel reads in the order it reads it.

A block has lines (rows of A, columns of B) of up to DEPTH elements along the sum. A slab holds as
many lines as the kernel takes at once, and lines that the block does not have are zeros.
"""

from __future__ import annotations

from tofuse.backends.llvm.ir_text import VECTORS_ON_STACK, Function
from tofuse.backends.llvm.matmul.masked_vectors import (
    FLOATS,
    LANES,
    below,
    element,
    load,
    module,
    only_if,
    store,
)
from tofuse.backends.llvm.shuffles import transpose

WIDTH = 2 * LANES  # columns of B in a slab
DEPTH = 256


def slab_strides(turned: bool) -> tuple[int, int]:
    """Elements from line to line and along the sum in a slab of A.

    `turned` slabs have the lines side by side, others one after the other, with a line of
    memory between them, so that they do not meet in the same sets of the cache.
    """
    return (1, LANES) if turned else (DEPTH + LANES, 1)


def slab_elements(lines: int, turned: bool) -> int:
    """Elements of a slab of A."""
    return DEPTH * LANES if turned else lines * (DEPTH + LANES)


ARGUMENTS = "ptr %from, i64 %stride, i64 %lines, i64 %depth, ptr %to"
HEAD = f"define void @pack({ARGUMENTS}) nounwind {VECTORS_ON_STACK}"


def side_by_side(lines: int, width: int) -> str:
    """Neighbours in memory are lines: `to[k][line] = from[k * stride + line]`, `width` a row."""
    f = Function()
    with f.loop("0", "%lines", str(lines)) as first:
        slab = f.let(f"getelementptr float, ptr %to, i64 {f.let(_slab(f, first, lines, width))}")
        masks = [below(f, _room(f, first, lines), v) for v in range(0, width, LANES)]
        with f.loop("0", "%depth", "1") as k:
            at = f.let(f"add i64 {f.let(f'mul i64 {k}, %stride')}, {first}")
            row = f.let(f"mul i64 {k}, {width}")
            for v, mask in zip(range(0, width, LANES), masks, strict=True):
                x = load(f, element(f, "%from", f.let(f"add i64 {at}, {v}")), mask)
                store(f, x, element(f, slab, f.let(f"add i64 {row}, {v}")))
    return module(f, HEAD)


def one_after_another(lines: int) -> str:
    """Neighbours in memory are along the sum, in the slab too: lines are copied as they are."""
    f = Function()
    per_line, _ = slab_strides(turned=False)
    with f.loop("0", "%lines", "1") as line:
        source = element(f, "%from", f.let(f"mul i64 {line}, %stride"))
        target = element(f, "%to", f.let(f"mul i64 {line}, {per_line}"))
        with f.loop("0", "%depth", str(LANES)) as k:
            mask = below(f, f.let(f"sub i64 %depth, {k}"), 0)
            store(f, load(f, element(f, source, k), mask), element(f, target, k))
    above = f.let(f"add i64 %lines, {lines - 1}")
    end = f.let(f"mul i64 {f.let(f'sdiv i64 {above}, {lines}')}, {lines}")
    with f.loop("%lines", end, "1") as line:
        target = element(f, "%to", f.let(f"mul i64 {line}, {per_line}"))
        with f.loop("0", "%depth", str(LANES)) as k:
            store(f, "zeroinitializer", element(f, target, k))
    return module(f, HEAD)


def turned_columns() -> str:
    """Neighbours in memory are along the sum, in the slab lines: blocks are turned in registers."""
    f = Function()
    with f.loop("0", "%lines", str(WIDTH)) as first:
        slab = f.let(f"getelementptr float, ptr %to, i64 {f.let(_slab(f, first, WIDTH, WIDTH))}")
        with f.loop("0", "%depth", str(LANES)) as k:
            inside = below(f, f.let(f"sub i64 %depth, {k}"), 0)
            row = f.let(f"mul i64 {k}, {WIDTH}")
            with f.loop("0", str(WIDTH), str(LANES)) as v:
                parts = []
                for r in range(LANES):
                    line = f.let(f"add i64 {first}, {f.let(f'add i64 {v}, {r}')}")
                    there = f.let(f"icmp slt i64 {line}, %lines")
                    near = f.let(f"select i1 {there}, i64 {line}, i64 0")  # an address that is ours
                    at = f.let(f"add i64 {f.let(f'mul i64 {near}, %stride')}, {k}")
                    parts.append(load(f, element(f, "%from", at), only_if(f, there, inside)))
                column = f.let(f"add i64 {row}, {v}")
                for r, x in enumerate(transpose(f, parts, FLOATS)):
                    store(f, x, element(f, slab, f.let(f"add i64 {column}, {r * WIDTH}")))
    return module(f, HEAD)


def _slab(f: Function, first: str, lines: int, width: int) -> str:
    """Where the slab begins whose first line that is."""
    return f"mul i64 {f.let(f'sdiv i64 {first}, {lines}')}, {DEPTH * width}"


def _room(f: Function, first: str, lines: int) -> str:
    """How many lines of a slab the block has."""
    rest = f.let(f"sub i64 %lines, {first}")
    few = f.let(f"icmp slt i64 {rest}, {lines}")
    return f.let(f"select i1 {few}, i64 {rest}, i64 {lines}")
