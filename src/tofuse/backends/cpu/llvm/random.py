"""LLVM IR of random numbers: Philox-4x32-10 (Salmon et al., 2011), as in `ops/philox.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tofuse.backends.cpu.llvm.function_emitter import FunctionEmitter
from tofuse.backends.cpu.llvm.ir_text import FunctionBuilder, splat
from tofuse.backends.cpu.llvm.vector_math.formula_builder import FormulaBuilder, Value
from tofuse.ir.dims import known_multiple
from tofuse.ir.kernel import Uniform
from tofuse.ir.types import DType
from tofuse.ops.philox import (
    HALF_COUNTERS,
    HALF_WORDS,
    MULTIPLIERS,
    PHILOX_BLOCK,
    PHILOX_COUNTERS,
    ROUNDS,
    WEYL,
)

KEY_WORDS = 2 * ROUNDS + 1

Philox = Callable[[Value], list[Value]]  # from 64-bit counters to the four words of each


def emit_uniform(emitter: FunctionEmitter, s: Uniform) -> None:
    """Emit the numbers of a statement: the upper 24 bits of words, in [0, 1), or booleans."""
    f, b = emitter.f, FormulaBuilder(emitter.f, emitter.lanes)
    keys = emitter.scratch_pointer(emitter.nest.philox_keys[s.seed])
    blocks_per_row = f.let(f"add i64 {emitter.size(s.extent)}, {PHILOX_BLOCK - 1}")
    blocks_per_row = f.let(f"sdiv i64 {blocks_per_row}, {PHILOX_BLOCK}")
    in_blocks = _runs_in_blocks(emitter, s)
    if s.below is not None:
        draw = _block_booleans if in_blocks else _lane_booleans
        emitter.define(s.name, draw(emitter, s, s.below, blocks_per_row, keys), DType.BOOL)
        return
    philox = partial(_philox_words, emitter, b, s, keys)
    emit_words = _block_words if in_blocks else _lane_words
    words = emit_words(emitter, b, s, blocks_per_row, philox)
    numbers = [(b.cast("sitofp", w >> 8, "float") * 2.0**-24).text for w in words]
    emitter.define(s.name, numbers, DType.F32)


def _runs_in_blocks(emitter: FunctionEmitter, s: Uniform) -> bool:
    """Return whether one iteration of the vector loop covers one block of the generator."""
    axis, lanes = emitter.vector_axis, emitter.lanes
    if axis is None or lanes not in (4, 8, 16) or emitter.unroll * lanes != PHILOX_BLOCK:
        return False
    others = [c for a, c in s.col.terms if a != axis] + [s.col.const]
    others += [lp.strip for lp in emitter.nest.schedule.loops if lp.axis == axis]
    starts_at_block = all(known_multiple(c, PHILOX_BLOCK) for c in others)
    return s.col.coefficient(axis) == 1 and starts_at_block


def _block_words(
    emitter: FunctionEmitter, b: FormulaBuilder, s: Uniform, blocks_per_row: str, philox: Philox
) -> list[Value]:
    """Return the words of the next 64 elements: all four words of 16 counters, in turn."""
    first = emitter.f.let(f"shl i64 {_block_number(emitter, s, blocks_per_row)}, 4")
    return _words_in_turn(b, first, PHILOX_COUNTERS, philox)


def _block_booleans(
    emitter: FunctionEmitter, s: Uniform, below: int, blocks_per_row: str, keys: str
) -> list[str]:
    """Return, for the next 64 elements, whether each half word is less than `below`."""
    f, lanes = emitter.f, emitter.lanes
    b = FormulaBuilder(f, min(lanes, HALF_COUNTERS))
    first = f.let(f"shl i64 {_block_number(emitter, s, blocks_per_row)}, 3")
    philox = partial(_philox_words, emitter, b, s, keys)
    halves = FormulaBuilder(f, 2 * b.width)
    signed = below - HALF_WORDS if below >= HALF_WORDS // 2 else below  # as LLVM writes an i16
    booleans: list[str] = []
    for word in _words_in_turn(b, first, HALF_COUNTERS, philox):
        half = halves.value(f.let(f"bitcast {word.typed} to {halves.type('i16')}"), "i16")
        found = halves.compare("ult", half, signed).text
        starts = range(0, halves.width, lanes)
        parts = [list(range(start, start + lanes)) for start in starts]
        whole = len(parts) == 1
        booleans += [
            found if whole else f.shuffle(halves.type("i1"), found, "poison", part)
            for part in parts
        ]
    return booleans


def _block_number(emitter: FunctionEmitter, s: Uniform, blocks_per_row: str) -> str:
    """Return the number of the block that holds the next elements."""
    f = emitter.f
    row = f.let(f"mul i64 {emitter.affine(s.row)}, {blocks_per_row}")
    col = f.let(f"lshr i64 {emitter.affine(s.col)}, 6")
    return f.let(f"add i64 {row}, {col}")


def _words_in_turn(b: FormulaBuilder, first: str, count: int, philox: Philox) -> list[Value]:
    """Return the words of consecutive counters in vectors: all four of a counter, then the next."""
    lanes = b.width
    words: list[Value] = []
    for start in range(0, count, lanes):
        # vector k of the transposes has the words of the counters in lanes k, k + 4, k + 8, ...
        numbers = [start + lanes // 4 * (lane % 4) + lane // 4 for lane in range(lanes)]
        counters = b.value(f"<{', '.join(f'i64 {n}' for n in numbers)}>", "i64")
        words += _transpose_quads(b, philox(_splat(b, first) + counters))
    return words


def _transpose_quads(b: FormulaBuilder, words: list[Value]) -> list[Value]:
    """Transpose each four lanes of four vectors: within 128 bits, shuffles are cheap."""
    w0, w1, w2, w3 = words
    halves = (0, 4, 1, 5), (2, 6, 3, 7)  # lanes of a pair of vectors, the second's from 4 on
    pairs = [(_shuffle_quads(b, w0, w1, h), _shuffle_quads(b, w2, w3, h)) for h in halves]
    quarters = (0, 1, 4, 5), (2, 3, 6, 7)
    return [_shuffle_quads(b, x, y, q) for x, y in pairs for q in quarters]


def _shuffle_quads(b: FormulaBuilder, x: Value, y: Value, order: Sequence[int]) -> Value:
    """Shuffle each four lanes of two vectors in one way."""
    lanes = [start + k + (b.width - 4) * (k >= 4) for start in range(0, b.width, 4) for k in order]
    return b.value(b.f.shuffle(b.type("i32"), x.text, y.text, lanes), "i32")


def _lane_words(
    emitter: FunctionEmitter, b: FormulaBuilder, s: Uniform, blocks_per_row: str, philox: Philox
) -> list[Value]:
    """Return the words of any elements: one counter per lane, and one of its words."""
    vectors = []
    for u in range(emitter.unroll):
        row = b.value(emitter.lane_indices(s.row, u), "i64")
        col = b.value(emitter.lane_indices(s.col, u), "i64")
        group = row * _splat(b, blocks_per_row) + (col >> 6)
        words = philox((group << 4) | ((col >> 2) & 15))
        vectors.append(_select_word(b, col & 3, words))
    return vectors


def _lane_booleans(
    emitter: FunctionEmitter, s: Uniform, below: int, blocks_per_row: str, keys: str
) -> list[str]:
    """Return whether half words are less than `below`, for elements in any order."""
    b = FormulaBuilder(emitter.f, emitter.lanes)
    booleans = []
    for u in range(emitter.unroll):
        row = b.value(emitter.lane_indices(s.row, u), "i64")
        col = b.value(emitter.lane_indices(s.col, u), "i64")
        group = row * _splat(b, blocks_per_row) + (col >> 6)
        words = _philox_words(emitter, b, s, keys, (group << 3) | ((col >> 3) & 7))
        word = _select_word(b, (col >> 1) & 3, words)
        upper = b.compare("ne", col & 1, 0)
        half = b.select(upper, word >> 16, word & (HALF_WORDS - 1))
        booleans.append(b.compare("ult", half, below).text)
    return booleans


def _select_word(b: FormulaBuilder, number: Value, words: list[Value]) -> Value:
    """Return the word of a number in each lane."""
    selected = words[0]
    for k in range(1, 4):
        selected = b.select(b.compare("eq", number, k), words[k], selected)
    return selected


def _philox_words(
    emitter: FunctionEmitter, b: FormulaBuilder, s: Uniform, keys: str, counter: Value
) -> list[Value]:
    """Return the four words of 64-bit counters."""
    f, lanes = emitter.f, b.width
    low, high = b.cast("trunc", counter, "i32"), b.cast("trunc", counter >> 32, "i32")
    c2 = splat(f, _load_word(f, keys, KEY_WORDS - 1), "i32", lanes)
    c3 = splat(f, f.let(f"trunc i64 {emitter.size(s.stream)} to i32"), "i32", lanes)
    symbol, word_ty = f"@tofuse.philox.{lanes}", b.type("i32")
    f.declarations[symbol] = _philox_definition(symbol, lanes)
    result = f"{{ {', '.join([word_ty] * 4)} }}"
    arguments = ", ".join(f"{word_ty} {word}" for word in (low.text, high.text, c2, c3))
    four_words = f.let(f"call {result} {symbol}({arguments}, ptr {keys})")
    return [b.emit(f"extractvalue {result} {four_words}, {k}", "i32") for k in range(4)]


def _philox_definition(symbol: str, lanes: int) -> str:
    """Return a function of the four counter words and the round keys to four words per lane."""
    f = FunctionBuilder()
    b = FormulaBuilder(f, lanes)
    c = [b.value(f"%c{k}", "i32") for k in range(4)]
    for r in range(ROUNDS):
        hi0, lo0 = _wide_multiply(b, c[0], MULTIPLIERS[0])
        hi1, lo1 = _wide_multiply(b, c[2], MULTIPLIERS[1])
        mixed = hi1 ^ c[1], hi0 ^ c[3]
        words = (splat(f, _load_word(f, "%keys", 2 * r + k), "i32", lanes) for k in range(2))
        key0, key1 = (b.value(word, "i32") for word in words)
        c = [mixed[0] ^ key0, lo1, mixed[1] ^ key1, lo0]
    ty = b.type("i32")
    result = f"{{ {', '.join([ty] * 4)} }}"
    packed = "poison"
    for k, word in enumerate(c):
        packed = f.let(f"insertvalue {result} {packed}, {word.typed}, {k}")
    parameters = ", ".join(f"{ty} %c{k}" for k in range(4))
    head = f"define internal {result} {symbol}({parameters}, ptr %keys) alwaysinline nounwind"
    return f.text(head, f"ret {result} {packed}")


def _wide_multiply(b: FormulaBuilder, x: Value, m: int) -> tuple[Value, Value]:
    """Return the upper and the lower words of 32 x 32 bit products.

    Even and odd lanes are multiplied separately.
    """
    if b.width == 1:
        whole = b.cast("zext", x, "i64") * m
        return b.cast("trunc", whole >> 32, "i32"), b.cast("trunc", whole, "i32")
    pairs, ty = FormulaBuilder(b.f, b.width // 2), b.type("i32")
    wide = pairs.value(b.f.let(f"bitcast {x.typed} to {pairs.type('i64')}"), "i64")
    products = (wide & 0xFFFFFFFF) * m, (wide >> 32) * m
    even, odd = (b.f.let(f"bitcast {p.typed} to {ty}") for p in products)
    # the upper words of even and odd products alternate, and so do the lower ones
    low = [k + (b.width - 1) * (k % 2) for k in range(b.width)]
    high = [k + 1 for k in low]
    upper, lower = (b.f.shuffle(ty, even, odd, order) for order in (high, low))
    return b.value(upper, "i32"), b.value(lower, "i32")


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


def _splat(b: FormulaBuilder, scalar: str) -> Value:
    return b.value(splat(b.f, scalar, "i64", b.width), "i64")


def _load_word(f: FunctionBuilder, pointer: str, k: int) -> str:
    return f.let(f"load i32, ptr {f.let(f'getelementptr i32, ptr {pointer}, i64 {k}')}")


def _store_word(f: FunctionBuilder, pointer: str, k: int, word: str) -> None:
    slot = f.let(f"getelementptr i32, ptr {pointer}, i64 {k}")
    f.put(f"store i32 {word}, ptr {slot}")
