"""Philox-4x32-10 (Salmon et al., 2011) in LLVM IR: the numbers of `ops/philox.py`, in vectors."""

from __future__ import annotations

from tofuse.backends.llvm.ir_text import FunctionBuilder, literal, vector_type
from tofuse.ir.types import DType
from tofuse.ops.philox import MULTIPLIERS, ROUNDS, WEYL

KEY_WORDS = 2 * ROUNDS + 1


def philox_symbol(lanes: int) -> str:
    return f"@tofuse.philox.{lanes}"


def philox_definition(lanes: int) -> str:
    """Return a function of the four counter words and the round keys to four words per lane."""
    f, ty = FunctionBuilder(), vector_type("i32", lanes)
    c = [f"%c{k}" for k in range(4)]
    for r in range(ROUNDS):
        hi0, lo0 = _wide_multiply(f, c[0], MULTIPLIERS[0], lanes)
        hi1, lo1 = _wide_multiply(f, c[2], MULTIPLIERS[1], lanes)
        a = f.let(f"xor {ty} {hi1}, {c[1]}")
        b = f.let(f"xor {ty} {hi0}, {c[3]}")
        keys = [splat(f, load_word(f, "%keys", 2 * r + k), "i32", lanes) for k in range(2)]
        c = [f.let(f"xor {ty} {a}, {keys[0]}"), lo1, f.let(f"xor {ty} {b}, {keys[1]}"), lo0]
    result = f"{{ {', '.join([ty] * 4)} }}"
    packed = "poison"
    for k, word in enumerate(c):
        packed = f.let(f"insertvalue {result} {packed}, {ty} {word}, {k}")
    words = ", ".join(f"{ty} %c{k}" for k in range(4))
    head = f"define internal {result} {philox_symbol(lanes)}({words}, ptr %keys)"
    return f.text(f"{head} alwaysinline nounwind", f"ret {result} {packed}")


def store_keys(f: FunctionBuilder, seed: str, keys: str) -> None:
    """Write the round keys of a seed (two i64 words), then the low word of its offset.

    The keys are in memory because a vector instruction can broadcast a word from there at no cost,
    and twenty registers are not available.
    """
    words = [
        f.let(f"load i64, ptr {f.let(f'getelementptr i64, ptr {seed}, i64 {k}')}") for k in (0, 1)
    ]
    key = [f.let(f"trunc i64 {words[0]} to i32")]
    key.append(f.let(f"trunc i64 {f.let(f'lshr i64 {words[0]}, 32')} to i32"))
    for r in range(ROUNDS):
        for k in range(2):
            _store_word(f, keys, 2 * r + k, key[k])
        key = [f.let(f"add i32 {k}, {w - (1 << 32)}") for k, w in zip(key, WEYL, strict=True)]
    _store_word(f, keys, 2 * ROUNDS, f.let(f"trunc i64 {words[1]} to i32"))


def load_word(f: FunctionBuilder, pointer: str, k: int) -> str:
    return f.let(f"load i32, ptr {f.let(f'getelementptr i32, ptr {pointer}, i64 {k}')}")


def _store_word(f: FunctionBuilder, pointer: str, k: int, word: str) -> None:
    slot = f.let(f"getelementptr i32, ptr {pointer}, i64 {k}")
    f.put(f"store i32 {word}, ptr {slot}")


def uniform_from_bits(f: FunctionBuilder, bits: str, lanes: int) -> str:
    """Convert the upper 24 bits to a float32 in [0, 1)."""
    ty, real = vector_type("i32", lanes), vector_type("float", lanes)
    upper = f.let(f"lshr {ty} {bits}, {literal(8, DType.I32, lanes)}")
    whole = f.let(f"sitofp {ty} {upper} to {real}")
    return f.let(f"fmul {real} {whole}, {literal(2.0**-24, DType.F32, lanes)}")


def splat(f: FunctionBuilder, scalar: str, element: str, lanes: int) -> str:
    """Return a vector with the scalar in every lane."""
    if lanes == 1:
        return scalar
    ty = vector_type(element, lanes)
    one = f.let(f"insertelement {ty} poison, {element} {scalar}, i64 0")
    zeros = f"<{lanes} x i32> zeroinitializer"
    return f.let(f"shufflevector {ty} {one}, {ty} poison, {zeros}")


def _wide_multiply(f: FunctionBuilder, x: str, m: int, lanes: int) -> tuple[str, str]:
    """Return the upper and the lower words of 32 x 32 bit products.

    Even and odd lanes are multiplied separately.
    """
    ty = vector_type("i32", lanes)
    if lanes == 1:
        wide = f.let(f"zext i32 {x} to i64")
        whole = f.let(f"mul i64 {wide}, {m}")
        upper = f.let(f"lshr i64 {whole}, 32")
        return f.let(f"trunc i64 {upper} to i32"), f.let(f"trunc i64 {whole} to i32")
    pairs = vector_type("i64", lanes // 2)
    low_mask = literal(0xFFFFFFFF, DType.I64, lanes // 2)
    half = literal(32, DType.I64, lanes // 2)
    factor = literal(m, DType.I64, lanes // 2)
    wide = f.let(f"bitcast {ty} {x} to {pairs}")
    even = f.let(f"mul {pairs} {f.let(f'and {pairs} {wide}, {low_mask}')}, {factor}")
    odd = f.let(f"mul {pairs} {f.let(f'lshr {pairs} {wide}, {half}')}, {factor}")
    words = [f.let(f"bitcast {pairs} {x} to {ty}") for x in (even, odd)]
    return _interleave_words(f, words, 1, lanes), _interleave_words(f, words, 0, lanes)


def _interleave_words(f: FunctionBuilder, words: list[str], offset: int, lanes: int) -> str:
    """Return every second word of the even products, interleaved with those of the odd products."""
    ty = vector_type("i32", lanes)
    order = [(lanes if k % 2 else 0) + k - k % 2 + offset for k in range(lanes)]
    picks = ", ".join(f"i32 {k}" for k in order)
    return f.let(f"shufflevector {ty} {words[0]}, {ty} {words[1]}, <{lanes} x i32> <{picks}>")
