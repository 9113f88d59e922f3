"""Philox-4x32-10 on registers (Salmon et al., 2011): the numbers of `ops/philox.py`, in vectors."""

from __future__ import annotations

from tofuse.backends.llvm.ir_text import Function, literal, vector
from tofuse.ir.types import DType

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
KEY_WORDS = 2 * ROUNDS + 1


def philox_symbol(lanes: int) -> str:
    return f"@tofuse.philox.{lanes}"


def philox_definition(lanes: int) -> str:
    """A function of the counter's four words and the round keys; returns four words a lane."""
    f, kind = Function(), vector("i32", lanes)
    c = [f"%c{k}" for k in range(4)]
    for r in range(ROUNDS):
        hi0, lo0 = _multiply(f, c[0], MULTIPLIERS[0], lanes)
        hi1, lo1 = _multiply(f, c[2], MULTIPLIERS[1], lanes)
        a = f.let(f"xor {kind} {hi1}, {c[1]}")
        b = f.let(f"xor {kind} {hi0}, {c[3]}")
        keys = [splat(f, load_word(f, "%keys", 2 * r + k), "i32", lanes) for k in range(2)]
        c = [f.let(f"xor {kind} {a}, {keys[0]}"), lo1, f.let(f"xor {kind} {b}, {keys[1]}"), lo0]
    result = f"{{ {', '.join([kind] * 4)} }}"
    packed = "poison"
    for k, word in enumerate(c):
        packed = f.let(f"insertvalue {result} {packed}, {kind} {word}, {k}")
    words = ", ".join(f"{kind} %c{k}" for k in range(4))
    head = f"define internal {result} {philox_symbol(lanes)}({words}, ptr %keys)"
    return f.text(f"{head} alwaysinline nounwind", f"ret {result} {packed}")


def store_keys(f: Function, seed: str, keys: str) -> None:
    """Write the round keys of a seed (two i64 words), then the low word of its offset.

    In memory, because a vector instruction reads and repeats a word there for nothing, where
    twenty registers would not do.
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


def load_word(f: Function, pointer: str, k: int) -> str:
    return f.let(f"load i32, ptr {f.let(f'getelementptr i32, ptr {pointer}, i64 {k}')}")


def _store_word(f: Function, pointer: str, k: int, word: str) -> None:
    slot = f.let(f"getelementptr i32, ptr {pointer}, i64 {k}")
    f.put(f"store i32 {word}, ptr {slot}")


def uniform_from_bits(f: Function, bits: str, lanes: int) -> str:
    """The upper 24 bits as a float32 in [0, 1)."""
    kind, real = vector("i32", lanes), vector("float", lanes)
    upper = f.let(f"lshr {kind} {bits}, {literal(8, DType.I32, lanes)}")
    whole = f.let(f"sitofp {kind} {upper} to {real}")
    return f.let(f"fmul {real} {whole}, {literal(2.0**-24, DType.F32, lanes)}")


def splat(f: Function, scalar: str, element: str, lanes: int) -> str:
    """A scalar in every lane."""
    if lanes == 1:
        return scalar
    kind = vector(element, lanes)
    one = f.let(f"insertelement {kind} poison, {element} {scalar}, i64 0")
    zeros = f"<{lanes} x i32> zeroinitializer"
    return f.let(f"shufflevector {kind} {one}, {kind} poison, {zeros}")


def _multiply(f: Function, x: str, m: int, lanes: int) -> tuple[str, str]:
    """The upper and lower words of 32 by 32 bit products, by even and odd lanes."""
    kind = vector("i32", lanes)
    if lanes == 1:
        wide = f.let(f"zext i32 {x} to i64")
        whole = f.let(f"mul i64 {wide}, {m}")
        upper = f.let(f"lshr i64 {whole}, 32")
        return f.let(f"trunc i64 {upper} to i32"), f.let(f"trunc i64 {whole} to i32")
    pairs = vector("i64", lanes // 2)
    low_mask = literal(0xFFFFFFFF, DType.I64, lanes // 2)
    half = literal(32, DType.I64, lanes // 2)
    factor = literal(m, DType.I64, lanes // 2)
    wide = f.let(f"bitcast {kind} {x} to {pairs}")
    even = f.let(f"mul {pairs} {f.let(f'and {pairs} {wide}, {low_mask}')}, {factor}")
    odd = f.let(f"mul {pairs} {f.let(f'lshr {pairs} {wide}, {half}')}, {factor}")
    words = [f.let(f"bitcast {pairs} {x} to {kind}") for x in (even, odd)]
    return _interleave(f, words, 1, lanes), _interleave(f, words, 0, lanes)


def _interleave(f: Function, words: list[str], offset: int, lanes: int) -> str:
    """Every second word of the even products, with those of the odd products in between."""
    kind = vector("i32", lanes)
    order = [(lanes if k % 2 else 0) + k - k % 2 + offset for k in range(lanes)]
    picks = ", ".join(f"i32 {k}" for k in order)
    return f.let(f"shufflevector {kind} {words[0]}, {kind} {words[1]}, <{lanes} x i32> <{picks}>")
