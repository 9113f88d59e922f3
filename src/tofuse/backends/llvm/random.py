"""Philox-4x32-10 (Salmon et al., 2011) in LLVM IR: the numbers of `ops/philox.py`, in vectors."""

from __future__ import annotations

from tofuse.backends.llvm.ir_text import FunctionBuilder, splat, vector_type
from tofuse.backends.llvm.vector_math.formula_builder import FormulaBuilder
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
    b = FormulaBuilder(f, lanes)
    return (b.cast("sitofp", b.value(bits, "i32") >> 8, "float") * 2.0**-24).text


def _wide_multiply(f: FunctionBuilder, x: str, m: int, lanes: int) -> tuple[str, str]:
    """Return the upper and the lower words of 32 x 32 bit products.

    Even and odd lanes are multiplied separately.
    """
    if lanes == 1:
        b = FormulaBuilder(f, 1)
        whole = b.cast("zext", b.value(x, "i32"), "i64") * m
        return b.cast("trunc", whole >> 32, "i32").text, b.cast("trunc", whole, "i32").text
    b, ty = FormulaBuilder(f, lanes // 2), vector_type("i32", lanes)
    pairs = b.type("i64")
    wide = b.value(f.let(f"bitcast {ty} {x} to {pairs}"), "i64")
    products = (wide & 0xFFFFFFFF) * m, (wide >> 32) * m
    words = [f.let(f"bitcast {p.typed} to {ty}") for p in products]
    return _interleave_words(f, words, 1, lanes), _interleave_words(f, words, 0, lanes)


def _interleave_words(f: FunctionBuilder, words: list[str], offset: int, lanes: int) -> str:
    """Return every second word of the even products, interleaved with those of the odd products."""
    ty = vector_type("i32", lanes)
    order = [(lanes if k % 2 else 0) + k - k % 2 + offset for k in range(lanes)]
    picks = ", ".join(f"i32 {k}" for k in order)
    return f.let(f"shufflevector {ty} {words[0]}, {ty} {words[1]}, <{lanes} x i32> <{picks}>")
