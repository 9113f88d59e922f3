"""LLVM IR of a nest: one function per phase that threads share, and an entry that runs them.

The entry is `i32 @name(ptr context)`. The context has 64-bit words: the buffers' addresses, the
size symbols, the address of the workspace, the number of threads, and the status. The entry returns
0, or 1 if a gather met an index out of range.
"""

from __future__ import annotations

from tofuse.backends.cpu.llvm.function_emitter import FunctionEmitter
from tofuse.backends.cpu.llvm.ir_text import ALIGNED_STACK, FunctionBuilder
from tofuse.backends.cpu.llvm.loop_emitter import LoopEmitter
from tofuse.backends.cpu.llvm.random import store_keys
from tofuse.backends.cpu.llvm.scratch_accumulators import combine_threads
from tofuse.backends.cpu.llvm.vector_math.registry import math_definitions
from tofuse.backends.cpu.llvm.vector_math.vector_library import LIBRARY, library_definition
from tofuse.ir.nest import Nest, Phase


def emit(
    nest: Nest,
    *,
    contract: bool = True,
    avx512: bool = False,
    native: int = 16,
    saturating_casts: bool = False,
) -> str:
    """Return the text of a module for one kernel.

    `contract` allows fused multiply-adds, `avx512` the instructions of that extension; `native` is
    the number of floats in a register of the machine, for calls of the vector library;
    `saturating_casts` says what casts of floats out of an integer's range return.
    """
    return _ModuleEmitter(nest, contract, avx512, native, saturating_casts).run()


def phase_functions(nest: Nest) -> list[tuple[str, bool]]:
    """Return the functions that the entry runs in order, and whether threads share each one."""
    found: list[tuple[str, bool]] = []
    for k, phase in enumerate(nest.phases):
        found.append((f"slice{k}", bool(phase.band)))
        if phase.band and phase.partials:
            found.append((f"combine{k}", False))
    return found


def context_words(nest: Nest) -> int:
    """Return the number of 64-bit words in the entry's context."""
    return len(nest.kernel.buffers) + len(nest.kernel.symbols) + 3


class _ModuleEmitter:
    def __init__(
        self, nest: Nest, contract: bool, avx512: bool, native: int, saturating_casts: bool
    ) -> None:
        self.nest, self.contract, self.avx512, self.native = nest, contract, avx512, native
        self.saturating_casts = saturating_casts
        self.loops = LoopEmitter(nest)
        self.combined_scratch = frozenset(
            a.array.name for p in nest.phases for a in p.partials if a.array is not None
        )
        self.nontemporal = frozenset(b.name for b in nest.kernel.buffers if b.role == "nontemporal")
        self.declarations: dict[str, str] = {}
        self.math_calls: dict[tuple[str, str, int], None] = {}

    def run(self) -> str:
        name = self.nest.kernel.name
        texts = []
        for k, phase in enumerate(self.nest.phases):
            texts += [self._phase_function(k, phase), self._worker_function(k)]
            if phase.partials and phase.band:
                texts.append(self._combine_function(k, phase))
        texts.append(self._entry_function(name))
        by_width: dict[int, list[tuple[str, str]]] = {}
        for op, elem, lanes in self.math_calls:
            if op in LIBRARY:
                self.declarations |= library_definition(op, elem, lanes, self.native)
            else:
                by_width.setdefault(lanes, []).append((op, elem))
        for lanes, wanted in sorted(by_width.items()):
            self.declarations |= math_definitions(sorted(wanted), lanes, self.avx512)
        return "\n".join([*self.declarations.values(), "", *texts, "!0 = !{i32 1}"])

    # -- functions -------------------------------------------------------------------------------

    def _function_emitter(self, f: FunctionBuilder, thread_number: str | None) -> FunctionEmitter:
        """Read the context into a new emitter; `thread_number` is an operand, or None."""
        buffers, symbols = self.nest.kernel.buffers, self.nest.kernel.symbols
        pointers = {b.name: _context_word(f, k, "ptr") for k, b in enumerate(buffers)}
        sizes = {s: _context_word(f, k) for k, s in enumerate(symbols, len(buffers))}
        workspace = _context_word(f, context_words(self.nest) - 3, "ptr")
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
            self.native,
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

    def _phase_function(self, k: int, phase: Phase) -> str:
        """Emit one thread's share of a phase."""
        f = FunctionBuilder(self.contract, self.saturating_casts)
        emitter = self._function_emitter(f, "%share")
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
            words = context_words(self.nest)
            slot = f.let(f"getelementptr i64, ptr %context, i64 {words - 1}")
            f.put(f"store i64 1, ptr {slot}")
        head = f"define void @{self.nest.kernel.name}.slice{k}"
        rest = f"noinline nounwind {ALIGNED_STACK}"
        return self._function_text(f, f"{head}(ptr %context, i64 %share, i64 %shares) {rest}")

    def _parallel_loop(self, emitter: FunctionEmitter, phase: Phase) -> None:
        """Flatten the parallel loops into one range and run this thread's equal share of it."""
        f = emitter.f
        trip_counts = [self.loops.trip_count(emitter, lp) for lp in phase.band]
        total = trip_counts[0]
        for t in trip_counts[1:]:
            total = f.let(f"mul i64 {total}, {t}")
        lo = f.let(f"sdiv i64 {f.let(f'mul i64 {total}, %share')}, %shares")
        next_share = f.let("add i64 %share, 1")
        hi = f.let(f"sdiv i64 {f.let(f'mul i64 {total}, {next_share}')}, %shares")
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

    def _worker_function(self, k: int) -> str:
        """Emit what each thread of the pool runs: every n-th share, for n threads."""
        f, name = FunctionBuilder(), self.nest.kernel.name
        shares = self._threads(f)
        thread = f.let(f"sext i32 {f.call('@omp_get_thread_num', 'i32')} to i64")
        thread_count = f.let(f"sext i32 {f.call('@omp_get_num_threads', 'i32')} to i64")
        with f.loop(thread, shares, thread_count) as share:
            f.put(f"call void @{name}.slice{k}(ptr %context, i64 {share}, i64 {shares})")
        return self._function_text(
            f, f"define internal void @{name}.worker{k}(ptr %context) nounwind"
        )

    def _threads(self, f: FunctionBuilder) -> str:
        """Load the number of threads from the context."""
        return _context_word(f, context_words(self.nest) - 2)

    def _combine_function(self, k: int, phase: Phase) -> str:
        """Emit the combination of all threads' partial results."""
        f = FunctionBuilder(self.contract, self.saturating_casts)
        emitter = self._function_emitter(f, None)
        threads = self._threads(f)
        stride = emitter.size(self.nest.block_bytes)
        for a in phase.partials:
            combine_threads(emitter, a, threads, stride)
        head = f"define void @{self.nest.kernel.name}.combine{k}"
        rest = f"nounwind {ALIGNED_STACK}"
        return self._function_text(f, f"{head}(ptr %context, i64 %share, i64 %shares) {rest}")

    def _entry_function(self, name: str) -> str:
        """Emit the entry: all phases in order, in parallel if there are several threads."""
        f = FunctionBuilder()
        threads = self._threads(f)
        is_single = f.let(f"icmp eq i64 {threads}, 1")
        is_parallel = f.let(f"xor i1 {is_single}, true")
        thread_count = f.let(f"trunc i64 {threads} to i32")
        for k, phase in enumerate(self.nest.phases):
            if not phase.band:
                f.put(f"call void @{name}.slice{k}(ptr %context, i64 0, i64 1)")
                continue
            with f.if_then(is_single):
                f.put(f"call void @{name}.slice{k}(ptr %context, i64 0, i64 1)")
            with f.if_then(is_parallel):
                worker = ("ptr", f"@{name}.worker{k}")
                context, flags = ("ptr", "%context"), ("i32", "0")
                f.call("@GOMP_parallel", "void", worker, context, ("i32", thread_count), flags)
            if phase.partials:
                f.put(f"call void @{name}.combine{k}(ptr %context, i64 0, i64 1)")
        status = _context_word(f, context_words(self.nest) - 1)
        result = f.let(f"trunc i64 {status} to i32")
        return self._function_text(
            f, f"define i32 @{name}(ptr %context) nounwind", f"ret i32 {result}"
        )


def _context_word(f: FunctionBuilder, k: int, ty: str = "i64") -> str:
    """Load a word of the context."""
    slot = f.let(f"getelementptr i64, ptr %context, i64 {k}")
    return f.let(f"load {ty}, ptr {slot}")
