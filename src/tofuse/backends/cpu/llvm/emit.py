"""LLVM IR of a nest: one function per phase that threads share, and an entry that runs them."""

from __future__ import annotations

from dataclasses import dataclass

from tofuse.backends.cpu.llvm.entry import (
    PART_PARAMETERS,
    context_word,
    context_words,
    entry_function,
    part_range,
    thread_count,
    worker_function,
)
from tofuse.backends.cpu.llvm.function_emitter import FunctionEmitter
from tofuse.backends.cpu.llvm.ir_text import ALIGNED_STACK, FunctionBuilder
from tofuse.backends.cpu.llvm.loop_emitter import LoopEmitter
from tofuse.backends.cpu.llvm.random import store_keys
from tofuse.backends.cpu.llvm.scratch_accumulators import combine_threads
from tofuse.backends.cpu.llvm.vector_math.registry import math_definitions
from tofuse.backends.cpu.llvm.vector_math.vector_library import LIBRARY, library_definition
from tofuse.ir.nest import Nest, Phase


@dataclass(frozen=True)
class EmitOptions:
    """What code may use.

    `contract` allows fused multiply-adds, `avx512` the instructions of that extension; `native` is
    the number of floats in a register of the machine, for calls of the vector library;
    `saturating_casts` and `native_bf16` say how casts behave; see `FunctionBuilder`.
    """

    contract: bool = True
    avx512: bool = False
    native: int = 16
    saturating_casts: bool = False
    native_bf16: bool = False


def emit(nest: Nest, options: EmitOptions = EmitOptions()) -> str:
    """Return the text of a module for one kernel."""
    return _ModuleEmitter(nest, options).run()


def emit_slices(nest: Nest, options: EmitOptions, declarations: dict[str, str]) -> list[str]:
    """Return the functions of the phases of a nest, for a module that calls them itself.

    Add what they call to `declarations`.
    """
    emitter = _ModuleEmitter(nest, options)
    texts = [emitter.phase_function(k, phase) for k, phase in enumerate(nest.phases)]
    emitter.define_math()
    declarations |= emitter.declarations
    return texts


def phase_functions(nest: Nest) -> list[tuple[str, bool]]:
    """Return the functions that the entry runs in order, and whether threads share each one."""
    found: list[tuple[str, bool]] = []
    for k, phase in enumerate(nest.phases):
        found.append((f"slice{k}", bool(phase.band)))
        if phase.band and phase.partials:
            found.append((f"combine{k}", False))
    return found


NONTEMPORAL_METADATA = "!0 = !{i32 1}"


class _ModuleEmitter:
    def __init__(self, nest: Nest, options: EmitOptions) -> None:
        self.nest, self.options = nest, options
        self.loops = LoopEmitter(nest)
        self.combined_scratch = frozenset(
            a.array.name for p in nest.phases for a in p.partials if a.array is not None
        )
        self.nontemporal = frozenset(b.name for b in nest.kernel.buffers if b.role == "nontemporal")
        self.declarations: dict[str, str] = {}
        self.math_calls: dict[tuple[str, str, int], None] = {}

    def run(self) -> str:
        texts = []
        for k, phase in enumerate(self.nest.phases):
            texts += [
                self.phase_function(k, phase),
                worker_function(self.nest.kernel, k, self.declarations),
            ]
            if phase.partials and phase.band:
                texts.append(self._combine_function(k, phase))
        phases = [(bool(p.band), bool(p.partials)) for p in self.nest.phases]
        texts.append(entry_function(self.nest.kernel, phases, self.declarations))
        self.define_math()
        return "\n".join([*self.declarations.values(), "", *texts, NONTEMPORAL_METADATA])

    def define_math(self) -> None:
        """Add the definitions of the math functions that are called to the declarations."""
        by_width: dict[int, list[tuple[str, str]]] = {}
        for op, elem, lanes in self.math_calls:
            if op in LIBRARY:
                self.declarations |= library_definition(op, elem, lanes, self.options.native)
            else:
                by_width.setdefault(lanes, []).append((op, elem))
        for lanes, wanted in sorted(by_width.items()):
            self.declarations |= math_definitions(sorted(wanted), lanes, self.options.avx512)

    def _function_builder(self) -> FunctionBuilder:
        options = self.options
        return FunctionBuilder(options.contract, options.saturating_casts, options.native_bf16)

    # -- functions -------------------------------------------------------------------------------

    def _function_emitter(self, f: FunctionBuilder, thread_number: str | None) -> FunctionEmitter:
        """Read the context into a new emitter; `thread_number` is an operand, or None."""
        buffers, symbols = self.nest.kernel.buffers, self.nest.kernel.symbols
        pointers = {b.name: context_word(f, k, "ptr") for k, b in enumerate(buffers)}
        sizes = {s: context_word(f, k) for k, s in enumerate(symbols, len(buffers))}
        workspace = context_word(f, context_words(self.nest.kernel) - 3, "ptr")
        status = f.alloca("i1")
        emitter = FunctionEmitter(
            f,
            self.nest,
            pointers,
            sizes,
            workspace,
            workspace,
            status,
            self.combined_scratch,
            self.nontemporal,
            self.options.native,
        )
        f.put(f"store i1 false, ptr {status}")
        if thread_number is not None:
            shift = f.let(f"mul i64 {thread_number}, {emitter.size(self.nest.block_bytes)}")
            emitter.thread_workspace = f.let(f"getelementptr i8, ptr {workspace}, i64 {shift}")
        return emitter

    def _function_text(self, f: FunctionBuilder, head: str, tail: str = "ret void") -> str:
        """Return the text of a function and collect its declarations."""
        self.declarations |= f.declarations
        self.math_calls |= f.math_calls
        return f.text(head, tail)

    def phase_function(self, k: int, phase: Phase) -> str:
        """Emit one thread's share of a phase."""
        f = self._function_builder()
        emitter = self._function_emitter(f, "%thread")
        own = {a.array.name for a in phase.partials if a.array is not None}
        emitter.combined_scratch = self.combined_scratch - own
        for seed, scratch in self.nest.philox_keys.items():
            store_keys(f, emitter.pointers[seed], emitter.scratch_pointer(scratch))
        for a in phase.partials:
            self.loops.reductions.begin(emitter, a)
        self.loops.emit_nodes(emitter, phase.prologue)
        if phase.band:
            self._parallel_loop(emitter, phase)
        else:
            self.loops.emit_nodes(emitter, phase.body)
        for a in phase.partials:
            self.loops.reductions.finish(emitter, a, partial=True)
        if self.nontemporal:  # a barrier does not order nontemporal stores
            f.put("fence seq_cst")
        flag = f.let(f"load i1, ptr {emitter.status}")
        with f.if_then(flag):
            words = context_words(self.nest.kernel)
            slot = f.let(f"getelementptr i64, ptr %context, i64 {words - 1}")
            f.put(f"store i64 1, ptr {slot}")
        head = f"define void @{self.nest.kernel.name}.slice{k}"
        rest = f"noinline nounwind {ALIGNED_STACK}"
        return self._function_text(f, f"{head}({PART_PARAMETERS}) {rest}")

    def _parallel_loop(self, emitter: FunctionEmitter, phase: Phase) -> None:
        """Flatten the parallel loops into one range and run a part of it."""
        f = emitter.f
        trip_counts = [self.loops.trip_count(emitter, lp) for lp in phase.band]
        total = trip_counts[0]
        for t in trip_counts[1:]:
            total = f.let(f"mul i64 {total}, {t}")
        lo, hi = part_range(f, total)
        with self.loops.scope(emitter), f.loop(lo, hi, "1") as flat_index:
            remaining = flat_index
            outermost, *others = phase.band
            for loop, trips in zip(reversed(others), reversed(trip_counts), strict=False):
                index = f.let(f"srem i64 {remaining}, {trips}")
                remaining = f.let(f"sdiv i64 {remaining}, {trips}")
                self.loops.set_loop_index(emitter, loop, index)
            self.loops.set_loop_index(emitter, outermost, remaining)
            self.loops.emit_split_nodes(emitter, phase.body, phase.band)
            self.loops.reductions.fold_due_stages(emitter, phase.band, phase.body)

    def _combine_function(self, k: int, phase: Phase) -> str:
        """Emit the combination of all threads' partial results."""
        f = self._function_builder()
        emitter = self._function_emitter(f, None)
        threads = thread_count(f, self.nest.kernel)
        stride = emitter.size(self.nest.block_bytes)
        for a in phase.partials:
            combine_threads(emitter, a, threads, stride)
        head = f"define void @{self.nest.kernel.name}.combine{k}"
        rest = f"nounwind {ALIGNED_STACK}"
        return self._function_text(f, f"{head}({PART_PARAMETERS}) {rest}")
