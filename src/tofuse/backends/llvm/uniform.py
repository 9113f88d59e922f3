"""LLVM IR of `uniform` statements: Philox words for whole blocks of elements, or lane by lane."""

from __future__ import annotations

from tofuse.backends.llvm.function_emitter import FunctionEmitter
from tofuse.backends.llvm.ir_text import literal, vector_type
from tofuse.backends.llvm.random import (
    KEY_WORDS,
    load_word,
    philox_definition,
    philox_symbol,
    splat,
    uniform_from_bits,
)
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

    def words(self, counter: str, lanes: int) -> list[str]:
        """Return the four words of 64-bit counters."""
        f, word_ty, counter_ty = (
            self.emitter.f,
            vector_type("i32", lanes),
            vector_type("i64", lanes),
        )
        low = f.let(f"trunc {counter_ty} {counter} to {word_ty}")
        high = f.let(f"lshr {counter_ty} {counter}, {literal(32, DType.I64, lanes)}")
        high = f.let(f"trunc {counter_ty} {high} to {word_ty}")
        c2 = splat(f, load_word(f, self.keys, KEY_WORDS - 1), "i32", lanes)
        c3 = splat(f, f.let(f"trunc i64 {self.emitter.size(self.s.stream)} to i32"), "i32", lanes)
        symbol = philox_symbol(lanes)
        f.declarations[symbol] = philox_definition(lanes)
        result = f"{{ {', '.join([word_ty] * 4)} }}"
        arguments = ", ".join(f"{word_ty} {word}" for word in (low, high, c2, c3))
        four_words = f.let(f"call {result} {symbol}({arguments}, ptr {self.keys})")
        return [f.let(f"extractvalue {result} {four_words}, {k}") for k in range(4)]

    def block_words(self) -> list[str]:
        """Return the words of the next 64 elements: all four words of 16 counters."""
        f, lanes = self.emitter.f, self.emitter.lanes
        row = f.let(f"mul i64 {self.emitter.affine(self.s.row)}, {self.blocks_per_row}")
        col = f.let(f"lshr i64 {self.emitter.affine(self.s.col)}, 6")
        first = f.let(f"shl i64 {f.let(f'add i64 {row}, {col}')}, 4")
        counter_ty, words = vector_type("i64", lanes), []
        for half in range(PHILOX_COUNTERS // lanes):
            ramp = ", ".join(f"i64 {half * lanes + k}" for k in range(lanes))
            ramp = f"<{ramp}>" if lanes > 1 else str(half)
            counter = f.let(f"add {counter_ty} {splat(f, first, 'i64', lanes)}, {ramp}")
            words.append(self.words(counter, lanes))
        return [words[half][k] for k in range(4) for half in range(PHILOX_COUNTERS // lanes)]

    def lane_words(self) -> list[str]:
        """Return the words of any elements: one counter per lane, and one of its words."""
        f, emitter, lanes = self.emitter.f, self.emitter, self.emitter.lanes
        counter_ty, vectors = vector_type("i64", lanes), []
        for u in range(emitter.unroll):
            row, col = emitter.lane_indices(self.s.row, u), emitter.lane_indices(self.s.col, u)
            row = f.let(f"mul {counter_ty} {row}, {splat(f, self.blocks_per_row, 'i64', lanes)}")
            group = f.let(f"lshr {counter_ty} {col}, {literal(6, DType.I64, lanes)}")
            group = f.let(f"add {counter_ty} {row}, {group}")
            group = f.let(f"shl {counter_ty} {group}, {literal(4, DType.I64, lanes)}")
            lane = f.let(f"and {counter_ty} {col}, {literal(15, DType.I64, lanes)}")
            words = self.words(f.let(f"or {counter_ty} {group}, {lane}"), lanes)
            word_number = f.let(f"lshr {counter_ty} {col}, {literal(4, DType.I64, lanes)}")
            word_number = f.let(f"and {counter_ty} {word_number}, {literal(3, DType.I64, lanes)}")
            word_ty, mask_ty = vector_type("i32", lanes), vector_type("i1", lanes)
            selected = words[0]
            for k in range(1, 4):
                is_word = f.let(
                    f"icmp eq {counter_ty} {word_number}, {literal(k, DType.I64, lanes)}"
                )
                both = f"{word_ty} {words[k]}, {word_ty} {selected}"
                selected = f.let(f"select {mask_ty} {is_word}, {both}")
            vectors.append(selected)
        return vectors
