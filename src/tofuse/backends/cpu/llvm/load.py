"""Link machine code into this process and return its functions as callables."""

from __future__ import annotations

import ctypes
import functools
import itertools
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import llvmlite.binding as llvm

from tofuse.backends.code_library import LoadedText
from tofuse.backends.cpu.llvm.machine_code import (
    ObjectCode,
    digest,
    new_target_machine,
    object_codes,
    stored_code,
)
from tofuse.backends.cpu.llvm.vector_math.vector_library import LIBRARY, PREFIX, library_symbols
from tofuse.backends.cpu.processors import Processor, is_arm, level_of
from tofuse.backends.cpu.runtime.tile_permission import request_tiles
from tofuse.cost.thresholds import MAX_LIBRARIES_PER_LINKER, MAX_RECENT_LINKED_TEXTS
from tofuse.disk_store import Store
from tofuse.errors import CompileError
from tofuse.ir.machine_function import Entry, function_address, machine_function
from tofuse.ir.schedule import Target


@functools.cache
def host_processor() -> Processor:
    """Return the level of this processor."""
    llvm.initialize_native_target()
    return level_of(llvm.get_host_cpu_features(), is_arm())


def host_target(threads: int) -> Target:
    """Return the code generation target of this processor.

    PyTorch's matrix products use MKL, which restricts itself to AVX2 on processors that are not
    Intel's. With AVX-512 there, ours are twice as fast.
    """
    processor = host_processor()
    is_amd = llvm.get_host_cpu_name().startswith("znver")
    target = processor.target(threads, fast_gemm=processor.avx512 and is_amd)
    if not processor.avx512:
        return target
    features = llvm.get_host_cpu_features()
    has_tiles = features.get("amx-tile", False) and features.get("amx-bf16", False)
    return replace(
        target,
        bf16_dot=features.get("avx512bf16", False),
        bf16_tiles=has_tiles and request_tiles(),
        native_f16=features.get("avx512fp16", False),
    )


class CodeHandle(int):
    """The number of a module of `CODE`, whose machine code is freed after its last handle.

    The garbage collector does not track integers. So a handle in a cycle ends after all
    finalizers of the cycle, which may call the code, have run.
    """

    __slots__ = ()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            CODE.release(int(self))


@dataclass(eq=False)
class Linker:
    """A JIT linker for a limited number of libraries."""

    jit: llvm.LLJIT = field(
        # LLVM frees a module's text and code generation state once its machine code exists
        default_factory=lambda: llvm.create_lljit_compiler(new_target_machine())
    )
    libraries: int = 0


@dataclass(eq=False)
class LinkedModule:
    """The machine code of one text, and the number of its handles. `key` is the text's digest."""

    key: str
    library: llvm.ResourceTracker
    linker: Linker
    handles: int = 0


@dataclass(eq=False)
class LinkedCode:
    """The machine code linked into this process, by the digest of its text.

    A text is linked once. Its module lives as long as one of its functions; the `recent` ones live
    longer. `symbols` are the addresses of the functions that kernels call. Threads may share it:
    `lock` is held while LLVM compiles, links and frees, which runs no code of torch.
    """

    modules: dict[int, LinkedModule] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)  # of modules, by digest
    recent: dict[str, CodeHandle] = field(default_factory=dict)  # the last one used is the last
    ended: deque[int] = field(default_factory=deque)  # handles that are not yet counted
    # made by the last `compile`, and not yet linked
    compiled: dict[str, ObjectCode | CompileError] = field(default_factory=dict)
    symbols: dict[str, int] = field(default_factory=dict)
    linker: Linker | None = None
    new_numbers: Iterator[int] = field(default_factory=itertools.count)
    lock: threading.RLock = field(default_factory=threading.RLock)
    loads: int = 0  # that run in the thread that holds the lock
    max_threads: int = sys.maxsize  # that compile at once

    def compile(self, texts: Sequence[str], store: Store | None, threads: int) -> None:
        """Compile modules that will be loaded, on several threads."""
        with self.lock:
            new = {key: text for text in texts if (key := digest(text)) not in self.numbers}
            codes = object_codes(list(new.values()), store, min(threads, self.max_threads))
            self.compiled = dict(zip(new, codes, strict=True))

    def load(self, text: str, names: Sequence[str], store: Store | None = None) -> list[Entry]:
        """Return functions of a module, compiled or from the store; raise CompileError."""
        return self.load_text(text, names, store).functions

    def load_text(self, text: str, names: Sequence[str], store: Store | None) -> LoadedText:
        """Compile and link a module; return its functions and the key of `load_by_digest`."""
        key = digest(text)

        def compiled() -> ObjectCode | CompileError:
            return self.compiled.pop(key, None) or object_codes([text], store, threads=1)[0]

        return LoadedText(key, self._load(key, names, compiled))

    def load_by_digest(self, key: str, names: Sequence[str], store: Store) -> list[Entry]:
        """Return functions of the module with this digest, if it is loaded or in the store.

        Raises CompileError otherwise.
        """
        deleted = CompileError("the cached machine code of a kernel was deleted")
        return self._load(key, names, lambda: stored_code(key, store) or deleted)

    def forget(self) -> None:
        """Forget all texts, as in a new process; functions that live keep their code."""
        with self.lock:
            self.numbers.clear()
            self.recent.clear()

    def release(self, number: int) -> None:
        """Count one handle less: now, or later if this thread loads or another holds the lock.

        A handle may end anywhere, so waiting for the lock could be a deadlock.
        """
        self.ended.append(number)
        if self.lock.acquire(blocking=False):
            try:
                if not self.loads:
                    self._free_ended()
            finally:
                self.lock.release()

    def _load(
        self, key: str, names: Sequence[str], code: Callable[[], ObjectCode | CompileError]
    ) -> list[Entry]:
        """Return functions of a module; link it, if it is not linked."""
        with self.lock:
            self.loads += 1
            try:
                number = self.numbers.get(key)
                if number is None:
                    number = next(self.new_numbers)
                    self.modules[number] = self._link(key, code(), names)
                    self.numbers[key] = number
                module = self.modules[number]
                module.handles += 2
                handle = CodeHandle(number)
                self.recent.pop(key, None)
                self.recent[key] = CodeHandle(number)
                if len(self.recent) > MAX_RECENT_LINKED_TEXTS:
                    del self.recent[next(iter(self.recent))]
            finally:
                self.loads -= 1
            self._free_ended()
            return [machine_function(module.library[name], handle) for name in names]

    def _link(
        self, key: str, code: ObjectCode | CompileError, names: Sequence[str]
    ) -> LinkedModule:
        """Link object code into this process; raise CompileError."""
        if isinstance(code, CompileError):
            raise code
        for name in code.callees:
            if name.startswith(PREFIX) and name not in self.symbols:
                raise CompileError(f"this build of PyTorch has no {name}")
        library = llvm.JITLibraryBuilder().add_object_img(code.image)
        library.add_current_process()  # for memset, memcpy and similar
        for name in code.callees:
            if name in self.symbols:
                library.import_symbol(name, self.symbols[name])
        for name in names:
            library.export_symbol(name)
        linker = self.linker
        if linker is None or linker.libraries >= MAX_LIBRARIES_PER_LINKER:
            linker = self.linker = Linker()
        linker.libraries += 1  # failed ones too: names are unique
        try:
            linked = library.link(linker.jit, f"kernels{linker.libraries}")
        except RuntimeError as e:
            raise CompileError(f"LLVM cannot link the kernel: {e}") from e
        return LinkedModule(key, linked, linker)

    def _free_ended(self) -> None:
        """Count the handles that have ended; free the modules without handles.

        A linker is freed with its last module.
        """
        while True:
            try:
                number = self.ended.popleft()
            except IndexError:
                return
            module = self.modules[number]
            module.handles -= 1
            if not module.handles:
                del self.modules[number]
                if self.numbers.get(module.key) == number:
                    del self.numbers[module.key]
                module.library.close()

    def bind_openmp(self, library: ctypes.CDLL | None) -> None:
        """Resolve the functions of the OpenMP runtime that torch loaded, if it loaded one."""
        for name in ("GOMP_parallel", "GOMP_barrier", "omp_get_thread_num", "omp_get_num_threads"):
            if library is not None:
                self.symbols[name] = function_address(getattr(library, name))

    def bind_vector_library(self, library: ctypes.CDLL | None) -> frozenset[str]:
        """Resolve the functions of torch's vector library; return the names that it lacks."""
        missing = set()
        for name in LIBRARY:
            for symbol in library_symbols(name, max(4, host_processor().lanes)):
                function = getattr(library, symbol, None)
                if function is None:
                    missing.add(name)
                elif symbol not in self.symbols:
                    self.symbols[symbol] = function_address(function)
        return frozenset(missing)


CODE = LinkedCode()
