"""Nest -> LLVM IR text: a function per phase that threads share out, and an entry that runs them.

The entry is `i32 @name(ptr context)`: 64-bit words that are the buffers' addresses, the size
symbols, the workspace's address and the number of threads. It returns 0, or 1 where a gather met
an index out of range.
"""

from __future__ import annotations

from collections.abc import Sequence

from tofuse.backends.llvm.body import Body
from tofuse.backends.llvm.ir_text import VECTORS_ON_STACK, Function
from tofuse.backends.llvm.random import store_keys
from tofuse.backends.llvm.registers import Frame
from tofuse.backends.llvm.scratch_accumulators import combine_threads, fold_stages, store_partial
from tofuse.backends.llvm.vector_math import LIBRARY, library_definition, math_definitions
from tofuse.ir.nest import Nest, Phase


def emit(nest: Nest, *, contract: bool = True, avx512: bool = False, native: int = 16) -> str:
    """The text of a module for one kernel.

    `contract` allows fused multiply-adds, `avx512` that extension's own instructions; `native` is
    how many floats a register holds on the machine, for calls of the vector library.
    """
    return _Emitter(nest, contract, avx512, native).run()


def part_names(nest: Nest) -> list[tuple[str, bool]]:
    """The functions that the entry runs one after the other, and whether threads share each out."""
    found: list[tuple[str, bool]] = []
    for k, phase in enumerate(nest.phases):
        found.append((f"slice{k}", bool(phase.band)))
        if phase.band and phase.partials:
            found.append((f"combine{k}", False))
    return found


def context_words(nest: Nest) -> int:
    """How many 64-bit words the entry's context has."""
    return len(nest.kernel.buffers) + len(nest.kernel.symbols) + 3


class _Emitter:
    def __init__(self, nest: Nest, contract: bool, avx512: bool, native: int) -> None:
        self.nest, self.contract, self.avx512, self.native = nest, contract, avx512, native
        self.body = Body(nest)
        self.shared = frozenset(
            a.array.name for p in nest.phases for a in p.partials if a.array is not None
        )
        self.streams = frozenset(b.name for b in nest.kernel.buffers if b.role == "stream")
        self.declared: dict[str, str] = {}
        self.math: dict[tuple[str, str, int], None] = {}

    def run(self) -> str:
        name = self.nest.kernel.name
        texts, calls = [], []
        for k, phase in enumerate(self.nest.phases):
            texts += [self._slice(k, phase), self._worker(k)]
            calls.append((k, phase))
            if phase.partials and phase.band:
                texts.append(self._combine(k, phase))
        texts.append(self._entry(name, calls))
        by_width: dict[int, list[tuple[str, str]]] = {}
        for op, elem, lanes in self.math:
            if op in LIBRARY:
                self.declared |= library_definition(op, elem, lanes, self.native)
            else:
                by_width.setdefault(lanes, []).append((op, elem))
        for lanes, wanted in sorted(by_width.items()):
            self.declared |= math_definitions(sorted(wanted), lanes, self.avx512)
        return "\n".join([*self.declared.values(), "", *texts, "!0 = !{i32 1}"])

    # -- functions -------------------------------------------------------------------------------

    def _frame(self, f: Function, threads_block: str | None) -> Frame:
        """Read the context; `threads_block` is the operand that numbers this thread's share."""
        kernel, pointers, sizes = self.nest.kernel, {}, {}
        for k, b in enumerate(kernel.buffers):
            slot = f.let(f"getelementptr i64, ptr %context, i64 {k}")
            pointers[b.name] = f.let(f"load ptr, ptr {slot}")
        for k, s in enumerate(kernel.symbols, len(kernel.buffers)):
            slot = f.let(f"getelementptr i64, ptr %context, i64 {k}")
            sizes[s] = f.let(f"load i64, ptr {slot}")
        words = context_words(self.nest)
        slot = f.let(f"getelementptr i64, ptr %context, i64 {words - 3}")
        base = f.let(f"load ptr, ptr {slot}")
        status = f.alloca("i1")
        frame = Frame(f, self.nest, pointers, sizes, base, base, status, self.shared, self.streams)
        f.put(f"store i1 false, ptr {status}")
        if threads_block is not None:
            shift = f.let(f"mul i64 {threads_block}, {frame.size(self.nest.block_bytes)}")
            frame.block = f.let(f"getelementptr i8, ptr {base}, i64 {shift}")
        return frame

    def _close(self, f: Function, head: str, tail: str = "ret void") -> str:
        self.declared |= f.declared
        self.math |= f.math
        return f.text(head, tail)

    def _slice(self, k: int, phase: Phase) -> str:
        """One thread's share of a phase."""
        f = Function(self.contract)
        frame = self._frame(f, "%share")
        own = {a.array.name for a in phase.partials if a.array is not None}
        frame.shared = self.shared - own
        for seed, scratch in self.nest.keys.items():
            store_keys(f, frame.pointers[seed], frame.scratch_pointer(scratch))
        partial_cells = [self.body.begin(frame, a) for a in phase.partials]
        if not phase.band:
            self.body.nodes(frame, phase.head)
            self.body.nodes(frame, phase.body)
        else:
            self.body.nodes(frame, phase.head)
            self._band(frame, phase)
        for a, cell in zip(phase.partials, partial_cells, strict=True):
            if a.stages and cell is None:
                fold_stages(frame, a)
            if cell is not None:
                store_partial(frame, a, cell)
            self.body.end(a)
        if self.streams:  # streamed stores are not ordered before the barrier by themselves
            f.put("fence seq_cst")
        flag = f.let(f"load i1, ptr {frame.status}")
        with f.when(flag):
            words = context_words(self.nest)
            slot = f.let(f"getelementptr i64, ptr %context, i64 {words - 1}")
            f.put(f"store i64 1, ptr {slot}")
        head = f"define void @{self.nest.kernel.name}.slice{k}"
        rest = f"noinline nounwind {VECTORS_ON_STACK}"
        return self._close(f, f"{head}(ptr %context, i64 %share, i64 %shares) {rest}")

    def _band(self, frame: Frame, phase: Phase) -> None:
        """The shared-out loops as one flat range, of which each thread takes an equal part."""
        f = frame.f
        trips = [self.body.trips(frame, lp) for lp in phase.band]
        total = trips[0]
        for t in trips[1:]:
            total = f.let(f"mul i64 {total}, {t}")
        lo = f.let(f"sdiv i64 {f.let(f'mul i64 {total}, %share')}, %shares")
        after = f.let("add i64 %share, 1")
        hi = f.let(f"sdiv i64 {f.let(f'mul i64 {total}, {after}')}, %shares")
        with self.body.scope(frame), f.loop(lo, hi, "1") as flat:
            rest = flat
            for k in reversed(range(len(trips))):
                loop = phase.band[k]
                at = rest if k == 0 else f.let(f"srem i64 {rest}, {trips[k]}")
                rest = rest if k == 0 else f.let(f"sdiv i64 {rest}, {trips[k]}")
                self.body.set_axis(frame, loop, at)
            self.body.pieces(frame, phase.body, phase.band)
            self.body.chains.step(frame, phase.band, phase.body)

    def _worker(self, k: int) -> str:
        """What each thread of the pool runs: its shares, however many threads there are."""
        f, name = Function(), self.nest.kernel.name
        shares = self._threads(f)
        me = f.let(f"sext i32 {f.call('@omp_get_thread_num', 'i32')} to i64")
        team = f.let(f"sext i32 {f.call('@omp_get_num_threads', 'i32')} to i64")
        with f.loop(me, shares, team) as share:
            f.put(f"call void @{name}.slice{k}(ptr %context, i64 {share}, i64 {shares})")
        return self._close(f, f"define internal void @{name}.worker{k}(ptr %context) nounwind")

    def _threads(self, f: Function) -> str:
        slot = f.let(f"getelementptr i64, ptr %context, i64 {context_words(self.nest) - 2}")
        return f.let(f"load i64, ptr {slot}")

    def _combine(self, k: int, phase: Phase) -> str:
        f = Function(self.contract)
        frame = self._frame(f, None)
        threads = self._threads(f)
        stride = frame.size(self.nest.block_bytes)
        for a in phase.partials:
            combine_threads(frame, a, threads, stride)
        head = f"define void @{self.nest.kernel.name}.combine{k}"
        rest = f"nounwind {VECTORS_ON_STACK}"
        return self._close(f, f"{head}(ptr %context, i64 %share, i64 %shares) {rest}")

    def _entry(self, name: str, phases: Sequence[tuple[int, Phase]]) -> str:
        f = Function()
        threads = self._threads(f)
        alone = f.let(f"icmp eq i64 {threads}, 1")
        many = f.let(f"xor i1 {alone}, true")
        few = f.let(f"trunc i64 {threads} to i32")
        for k, phase in phases:
            if not phase.band:
                f.put(f"call void @{name}.slice{k}(ptr %context, i64 0, i64 1)")
                continue
            with f.when(alone):
                f.put(f"call void @{name}.slice{k}(ptr %context, i64 0, i64 1)")
            with f.when(many):
                worker = ("ptr", f"@{name}.worker{k}")
                context, flags = ("ptr", "%context"), ("i32", "0")
                f.call("@GOMP_parallel", "void", worker, context, ("i32", few), flags)
            if phase.partials:
                f.put(f"call void @{name}.combine{k}(ptr %context, i64 0, i64 1)")
        slot = f.let(f"getelementptr i64, ptr %context, i64 {context_words(self.nest) - 1}")
        status = f.let(f"load i64, ptr {slot}")
        result = f.let(f"trunc i64 {status} to i32")
        return self._close(f, f"define i32 @{name}(ptr %context) nounwind", f"ret i32 {result}")
