"""LLVM IR text -> callables in this process: machine code, linked and resolved."""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Callable, Sequence

import llvmlite.binding as llvm

from tofuse.backends.llvm.machine_code import (
    Code,
    Kept,
    code_of,
    digest,
    kept_code,
    new_machine,
)
from tofuse.backends.llvm.vector_math import LIBRARY, PREFIX, library_symbols
from tofuse.errors import CompileError
from tofuse.ir.schedule import Target

Entry = Callable[[object], int]  # takes a ctypes array of the context's words


@functools.cache
def host_lanes() -> int:
    """How many float32 lanes a vector register of this processor has; 1 for none."""
    llvm.initialize_native_target()
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        return 16
    if features.get("avx2"):
        return 8
    if features.get("sse2") or features.get("neon") or "arm64" in llvm.get_default_triple():
        return 4
    return 4 if "aarch64" in llvm.get_default_triple() else 1


def host_target(threads: int) -> Target:
    """What there is to generate code for on this processor.

    PyTorch's products are MKL's, which uses AVX2 on processors that are not Intel's: where there is
    AVX-512, ours are twice as fast.
    """
    lanes = host_lanes()
    avx512 = lanes == 16
    products = avx512 and llvm.get_host_cpu_name().startswith("znver")
    return Target(lanes, threads, avx512=avx512, products=products, native=max(4, lanes))


_linked: list[llvm.ResourceTracker] = []  # keeps machine code alive as long as the process
_numbers = itertools.count()  # of libraries, failed ones too
_loaded: dict[str, list[Entry]] = {}  # by digest: the same text is compiled once in a process
_bound: dict[str, int] = {}  # where the functions are that kernels call, by name


@functools.cache
def linker() -> llvm.LLJIT:
    """Links machine code into this process.

    A module's own text and code generation are given up once its machine code is made: of 0.8 MB
    a kernel, less than a tenth stays.
    """
    return llvm.create_lljit_compiler(new_machine())


def load(text: str, names: Sequence[str], kept: Kept | None = None) -> list[Entry]:
    """The entries of a module, whose machine code may be `kept`; raises CompileError."""
    return _loaded[load_text(text, names, kept)]


def load_text(text: str, names: Sequence[str], kept: Kept | None) -> str:
    """Compile and link a module; its digest, by which `load_digest` finds its entries."""
    key = digest(text)
    if key not in _loaded:
        _loaded[key] = _link(code_of(text, kept), names)
    return key


def load_digest(key: str, names: Sequence[str], kept: Kept) -> list[Entry]:
    """The entries of a module by its text's digest, if it is loaded or its machine code was kept.

    Raises CompileError where it is neither.
    """
    if key not in _loaded:
        code = kept_code(key, kept)
        if code is None:
            raise CompileError("the machine code of a kernel is not kept any more")
        _loaded[key] = _link(code, names)
    return _loaded[key]


def address(entry: Callable[..., object]) -> int:
    """Where the machine code of a C function is."""
    found = ctypes.cast(entry, ctypes.c_void_p).value  # type: ignore[arg-type]  # a C function
    assert found is not None
    return found


def _link(code: Code, names: Sequence[str]) -> list[Entry]:
    """Machine code -> its entries in this process; raises CompileError."""
    for name in code.called:
        if name.startswith(PREFIX) and name not in _bound:
            raise CompileError(f"this build of PyTorch has no {name}")
    library = llvm.JITLibraryBuilder().add_object_img(code.image)
    library.add_current_process()  # memset and its like
    for name in code.called:
        if name in _bound:
            library.import_symbol(name, _bound[name])
    for name in names:
        library.export_symbol(name)
    try:
        linked = library.link(linker(), f"kernels{next(_numbers)}")
    except RuntimeError as e:
        raise CompileError(f"LLVM cannot link the kernel: {e}") from e
    _linked.append(linked)
    prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    return [prototype(linked[n]) for n in names]


def bind_threads(library: ctypes.CDLL | None) -> None:
    """Resolve the OpenMP entry points from the runtime torch loaded, or run on one thread."""
    names = ("GOMP_parallel", "GOMP_barrier", "omp_get_thread_num", "omp_get_num_threads")
    for name in names:
        if library is not None:
            _bound[name] = address(getattr(library, name))


def bind_functions(library: ctypes.CDLL | None) -> frozenset[str]:
    """Resolve the functions of torch's vector library, and name those that it does not have."""
    missing = set()
    for name in LIBRARY:
        for symbol in library_symbols(name, max(4, host_lanes())):
            found = getattr(library, symbol, None)
            if found is None:
                missing.add(name)
            elif symbol not in _bound:
                _bound[symbol] = address(found)
    return frozenset(missing)
