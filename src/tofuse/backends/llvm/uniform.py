"""LLVM IR of `uniform` statements: Philox words for whole blocks of elements, or lane by lane."""

from __future__ import annotations

from tofuse.backends.llvm.function_emitter import FunctionEmitter
from tofuse.backends.llvm.ir_text import splat
from tofuse.backends.llvm.random import (
    KEY_WORDS,
    load_word,
    philox_definition,
    philox_symbol,
    uniform_from_bits,
)
from tofuse.backends.llvm.vector_math.formula_builder import FormulaBuilder, Value
from tofuse.ir.dims import known_multiple
from tofuse.ir.kernel import Uniform
from tofuse.ir.types import DType
from tofuse.ops.philox import PHILOX_BLOCK, PHILOX_COUNTERS


def emit_uniform(emitter: FunctionEmitter, s: Uniform) -> None:
    """Emit the uniform numbers of a statement."""
    f = emitter.f
    keys = emitter.scratch_pointer(emitter.nest.philox_keys[s.seed])
    blocks_per_row = f.let(f"add i64 {emitter.size(s.extent)}, {PHILOX_BLOCK - 1}")
    blocks_per_row = f.let(f"sdiv i64 {blocks_per_row}, {PHILOX_BLOCK}")
    philox = _PhiloxWords(emitter, s, keys, blocks_per_row)
    words = philox.block_words() if _runs_in_blocks(emitter, s) else philox.lane_words()
    emitter.define(s.name, [uniform_from_bits(f, w, emitter.lanes) for w in words], DType.F32)


def _runs_in_blocks(emitter: FunctionEmitter, s: Uniform) -> bool:
    """Return whether one iteration of the vector loop covers one block of the generator."""
    axis, lanes = emitter.vector_axis, emitter.lanes
    if axis is None or emitter.unroll * lanes != PHILOX_BLOCK or PHILOX_COUNTERS % lanes:
        return False
    others = [c for a, c in s.col.terms if a != axis] + [s.col.const]
    others += [lp.strip for lp in emitter.nest.schedule.loops if lp.axis == axis]
    starts_at_block = all(known_multiple(c, PHILOX_BLOCK) for c in others)
    return s.col.coefficient(axis) == 1 and starts_at_block


class _PhiloxWords:
    """Emits the Philox words of one `uniform` statement."""

    def __init__(
        self, emitter: FunctionEmitter, s: Uniform, keys: str, blocks_per_row: str
    ) -> None:
        self.emitter, self.s, self.keys, self.blocks_per_row = emitter, s, keys, blocks_per_row
        self.b = FormulaBuilder(emitter.f, emitter.lanes)

    def words(self, counter: Value) -> list[Value]:
        """Return the four words of 64-bit counters."""
        b, f, lanes = self.b, self.emitter.f, self.b.width
        low, high = b.cast("trunc", counter, "i32"), b.cast("trunc", counter >> 32, "i32")
        c2 = splat(f, load_word(f, self.keys, KEY_WORDS - 1), "i32", lanes)
        c3 = splat(f, f.let(f"trunc i64 {self.emitter.size(self.s.stream)} to i32"), "i32", lanes)
        symbol, word_ty = philox_symbol(lanes), b.type("i32")
        f.declarations[symbol] = philox_definition(lanes)
        result = f"{{ {', '.join([word_ty] * 4)} }}"
        arguments = ", ".join(f"{word_ty} {word}" for word in (low.text, high.text, c2, c3))
        four_words = f.let(f"call {result} {symbol}({arguments}, ptr {self.keys})")
        return [b.emit(f"extractvalue {result} {four_words}, {k}", "i32") for k in range(4)]

    def block_words(self) -> list[str]:
        """Return the words of the next 64 elements: all four words of 16 counters."""
        f, lanes = self.emitter.f, self.emitter.lanes
        row = f.let(f"mul i64 {self.emitter.affine(self.s.row)}, {self.blocks_per_row}")
        col = f.let(f"lshr i64 {self.emitter.affine(self.s.col)}, 6")
        first = f.let(f"shl i64 {f.let(f'add i64 {row}, {col}')}, 4")
        words = []
        for half in range(PHILOX_COUNTERS // lanes):
            ramp = ", ".join(f"i64 {half * lanes + k}" for k in range(lanes))
            ramp = f"<{ramp}>" if lanes > 1 else str(half)
            counter = self._splat(first) + self.b.value(ramp, "i64")
            words.append(self.words(counter))
        return [words[half][k].text for k in range(4) for half in range(PHILOX_COUNTERS // lanes)]

    def lane_words(self) -> list[str]:
        """Return the words of any elements: one counter per lane, and one of its words."""
        b, emitter, vectors = self.b, self.emitter, []
        for u in range(emitter.unroll):
            row = b.value(emitter.lane_indices(self.s.row, u), "i64")
            col = b.value(emitter.lane_indices(self.s.col, u), "i64")
            group = row * self._splat(self.blocks_per_row) + (col >> 6)
            words = self.words((group << 4) | (col & 15))
            word_number = (col >> 4) & 3
            selected = words[0]
            for k in range(1, 4):
                selected = b.select(b.compare("eq", word_number, k), words[k], selected)
            vectors.append(selected.text)
        return vectors

    def _splat(self, scalar: str) -> Value:
        return self.b.value(splat(self.emitter.f, scalar, "i64", self.b.width), "i64")
