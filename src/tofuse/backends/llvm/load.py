"""LLVM IR text -> callables in this process: parse, optimise for the host, link, resolve."""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import llvmlite.binding as llvm

from tofuse.backends.llvm.vector_math import LIBRARY, PREFIX, library_symbols
from tofuse.errors import CompileError
from tofuse.ir.schedule import Target

Entry = Callable[[object], int]  # takes a ctypes array of the context's words


@functools.cache
def host_machine() -> llvm.TargetMachine:
    """Code generation for this processor, full-width vectors included."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    features["prefer-256-bit"] = False
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=3, jit=True
    )


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
_loaded: dict[str, list[Entry]] = {}  # the same text is compiled once in a process
_bound: dict[str, int] = {}  # where the functions are that kernels call, by name


@functools.cache
def linker() -> llvm.LLJIT:
    """Links machine code into this process.

    A module's own text and code generation are given up once its machine code is made: of 0.8 MB
    a kernel, less than a tenth stays.
    """
    return llvm.create_lljit_compiler(_new_machine())


def load(text: str, names: Sequence[str]) -> list[Entry]:
    """Compile a module and give its entries; raises CompileError with LLVM's message."""
    if text not in _loaded:
        _loaded[text] = _compile(text, names)
    return _loaded[text]


def address(entry: Callable[..., object]) -> int:
    """Where the machine code of a C function is."""
    found = ctypes.cast(entry, ctypes.c_void_p).value  # type: ignore[arg-type]  # a C function
    assert found is not None
    return found


def _compile(text: str, names: Sequence[str]) -> list[Entry]:
    machine = host_machine()
    try:
        module = llvm.parse_assembly(text)
        module.triple, module.data_layout = machine.triple, str(machine.target_data)
        module.verify()
    except RuntimeError as e:
        raise CompileError(f"LLVM rejects the kernel: {e}") from e
    called = [f.name for f in module.functions if f.is_declaration]
    for name in called:
        if name.startswith(PREFIX) and name not in _bound:
            raise CompileError(f"this build of PyTorch has no {name}")
    _optimise(module, machine)
    with _addresses_as_they_are():
        library = llvm.JITLibraryBuilder().add_object_img(machine.emit_object(module))
    library.add_current_process()  # memset and its like
    for name in called:
        if name in _bound:
            library.import_symbol(name, _bound[name])
    for name in names:
        library.export_symbol(name)
    try:
        code = library.link(linker(), f"kernels{next(_numbers)}")
    except RuntimeError as e:
        raise CompileError(f"LLVM cannot link the kernel: {e}") from e
    _linked.append(code)
    prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    return [prototype(code[n]) for n in names]


def _new_machine() -> llvm.TargetMachine:
    """The linker takes its machine over, so it needs one of its own."""
    return host_machine.__wrapped__()


def _optimise(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    """The few passes that our text needs: it is already vectorised, unrolled and hoisted.

    A fifth of the time of LLVM's O2 for the same machine code; see docs/measurements.md.
    """
    passes = llvm.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_sroa_pass()
    passes.add_new_gvn_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.add_loop_rotate_pass()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))


@contextmanager
def _addresses_as_they_are() -> Iterator[None]:
    """Code generation without LLVM's search for cheaper addresses in loops, two fifths of its time.

    Vectors bind our loops, not addresses. The switch is the process's own, so it is put back.
    """
    llvm.set_option("tofuse", "-disable-lsr=true")
    try:
        yield
    finally:
        llvm.set_option("tofuse", "-disable-lsr=false")


def assembly(text: str) -> str:
    """The machine code of a module as text, for people."""
    module = llvm.parse_assembly(text)
    machine = host_machine()
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    _optimise(module, machine)
    with _addresses_as_they_are():
        return str(machine.emit_assembly(module))


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
