"""Link machine code into this process and return its functions as callables."""

from __future__ import annotations

import ctypes
import functools
import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import llvmlite.binding as llvm

from tofuse.backends.llvm.machine_code import (
    ObjectCode,
    digest,
    new_target_machine,
    object_codes,
    stored_code,
)
from tofuse.backends.llvm.vector_math.vector_library import LIBRARY, PREFIX, library_symbols
from tofuse.cache.store import Store
from tofuse.errors import CompileError
from tofuse.ir.schedule import Target

Entry = Callable[[object], int]  # its argument is a ctypes array of the context's words


@functools.cache
def host_lanes() -> int:
    """Return the number of float32 lanes in a vector register of this processor, 1 if none."""
    llvm.initialize_native_target()
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        return 16
    if features.get("avx2"):
        return 8
    is_arm = any(name in llvm.get_default_triple() for name in ("arm64", "aarch64"))
    return 4 if is_arm or features.get("sse2") or features.get("neon") else 1


def host_target(threads: int) -> Target:
    """Return the code generation target of this processor.

    PyTorch's matrix products use MKL, which restricts itself to AVX2 on processors that are not
    Intel's. With AVX-512 there, ours are twice as fast.
    """
    lanes = host_lanes()
    avx512 = lanes == 16
    products = avx512 and llvm.get_host_cpu_name().startswith("znver")
    return Target(lanes, threads, avx512=avx512, fast_gemm=products, native_lanes=max(4, lanes))


class CodeLibrary(Protocol):
    """Where machine code goes: `LinkedCode` of this process, or code collected for a file."""

    def compile(self, texts: Sequence[str], store: Store | None, threads: int) -> None:
        """Compile modules that will be loaded, on several threads."""

    def load(self, text: str, names: Sequence[str], store: Store | None = None) -> list[Entry]:
        """Return the functions of a module; raise CompileError."""

    def load_text(self, text: str, names: Sequence[str], store: Store | None) -> str:
        """Compile a module; return its digest, the key of `load_by_digest`."""

    def load_by_digest(self, key: str, names: Sequence[str], store: Store) -> list[Entry]:
        """Return the functions of the module with this digest."""


@dataclass(eq=False)
class LinkedCode:
    """The machine code linked into this process, by the digest of its text.

    It lives as long as the process: a text is compiled once. `symbols` are the addresses of the
    functions that kernels call. Threads may share it: `lock` is held while LLVM compiles and links,
    which runs no code of torch.
    """

    entries: dict[str, list[Entry]] = field(default_factory=dict)
    # made by the last `compile`, and not yet linked
    compiled: dict[str, ObjectCode | CompileError] = field(default_factory=dict)
    symbols: dict[str, int] = field(default_factory=dict)
    libraries: list[llvm.ResourceTracker] = field(default_factory=list)  # keep the code alive
    numbers: Iterator[int] = field(default_factory=itertools.count)  # of libraries, failed ones too
    lock: threading.RLock = field(default_factory=threading.RLock)
    max_threads: int = sys.maxsize  # that compile at once

    @functools.cached_property
    def linker(self) -> llvm.LLJIT:
        """The JIT linker.

        LLVM frees a module's text and code generation state once its machine code exists: of 0.8 MB
        per kernel, less than a tenth remains.
        """
        return llvm.create_lljit_compiler(new_target_machine())

    def compile(self, texts: Sequence[str], store: Store | None, threads: int) -> None:
        """Compile modules that will be loaded, on several threads."""
        with self.lock:
            new = {key: text for text in texts if (key := digest(text)) not in self.entries}
            codes = object_codes(list(new.values()), store, min(threads, self.max_threads))
            self.compiled = dict(zip(new, codes, strict=True))

    def load(self, text: str, names: Sequence[str], store: Store | None = None) -> list[Entry]:
        """Return the entries of a module, compiled or from the store; raise CompileError."""
        return self.entries[self.load_text(text, names, store)]

    def load_text(self, text: str, names: Sequence[str], store: Store | None) -> str:
        """Compile and link a module; return its digest, the key of `load_by_digest`."""
        key = digest(text)
        with self.lock:
            if key not in self.entries:
                code = self.compiled.pop(key, None) or object_codes([text], store, threads=1)[0]
                self.entries[key] = self._link(code, names)
        return key

    def load_by_digest(self, key: str, names: Sequence[str], store: Store) -> list[Entry]:
        """Return the entries of the module with this digest, if it is loaded or in the store.

        Raises CompileError otherwise.
        """
        with self.lock:
            if key not in self.entries:
                code = stored_code(key, store)
                if code is None:
                    raise CompileError("the cached machine code of a kernel was deleted")
                self.entries[key] = self._link(code, names)
        return self.entries[key]

    def _link(self, code: ObjectCode | CompileError, names: Sequence[str]) -> list[Entry]:
        """Link object code into this process and return its entries; raise CompileError."""
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
        try:
            linked = library.link(self.linker, f"kernels{next(self.numbers)}")
        except RuntimeError as e:
            raise CompileError(f"LLVM cannot link the kernel: {e}") from e
        self.libraries.append(linked)
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
        return [prototype(linked[n]) for n in names]

    def bind_openmp(self, library: ctypes.CDLL | None) -> None:
        """Resolve the functions of the OpenMP runtime that torch loaded, if it loaded one."""
        for name in ("GOMP_parallel", "GOMP_barrier", "omp_get_thread_num", "omp_get_num_threads"):
            if library is not None:
                self.symbols[name] = function_address(getattr(library, name))

    def bind_vector_library(self, library: ctypes.CDLL | None) -> frozenset[str]:
        """Resolve the functions of torch's vector library; return the names that it lacks."""
        missing = set()
        for name in LIBRARY:
            for symbol in library_symbols(name, max(4, host_lanes())):
                function = getattr(library, symbol, None)
                if function is None:
                    missing.add(name)
                elif symbol not in self.symbols:
                    self.symbols[symbol] = function_address(function)
        return frozenset(missing)


CODE = LinkedCode()


def function_address(entry: Callable[..., object]) -> int:
    """Return the address of a C function."""
    address = ctypes.cast(entry, ctypes.c_void_p).value  # type: ignore[arg-type]  # a C function
    assert address is not None
    return address
