"""Compile LLVM IR text to machine code for this processor, and keep it in a store on disk."""

from __future__ import annotations

import base64
import binascii
import ctypes
import functools
import hashlib
import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import llvmlite
import llvmlite.binding as llvm
from llvmlite.binding import ffi

from tofuse.backends.cpu.processors import Processor
from tofuse.backends.thread_map import thread_map
from tofuse.disk_store import Store
from tofuse.errors import CompileError

# The emitted text is already vectorized, unrolled and hoisted. These passes give the same machine
# code as O2 in a fifth of its time; see docs/measurements.md.
PASSES = (
    "always_inliner",
    "sroa",
    "new_gvn",
    "instruction_combine",
    "simplify_cfg",
    "loop_rotate",
    "global_dead_code_eliminate",
)
STORE_KIND = "code"
_IDLE_PASS_MANAGERS: deque[llvm.ModulePassManager] = (
    deque()
)  # a new one takes 0.1 ms, and leaks 10 KB
CODEGEN_LOCK = threading.RLock()  # held while an option of LLVM is set for the whole process


@dataclass(frozen=True)
class ObjectCode:
    """An object file, and the external functions that it calls."""

    image: bytes
    callees: tuple[str, ...]


def host_features() -> str:
    """Return the features of this processor, with full-width vectors enabled."""
    features = llvm.get_host_cpu_features()
    features["prefer-256-bit"] = False
    return str(features.flatten())


class _ThreadLocal(threading.local):
    @functools.cached_property
    def target_machine(self) -> llvm.TargetMachine:
        return new_target_machine()


_THREAD = _ThreadLocal()


def host_target_machine() -> llvm.TargetMachine:
    """Return the target machine of this processor that belongs to this thread."""
    return _THREAD.target_machine


def new_target_machine() -> llvm.TargetMachine:
    """Return a new target machine of this processor; a linker takes ownership of one."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=host_features(), opt=3, jit=True
    )


def target_machine(processor: Processor) -> llvm.TargetMachine:
    """Return LLVM's target machine of a processor level for position-independent code."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(processor.triple).create_target_machine(
        cpu=processor.cpu, features=processor.features, opt=3, reloc="pic", codemodel="small"
    )


def object_codes(
    texts: Sequence[str],
    store: Store | None,
    threads: int,
    machine: Callable[[], llvm.TargetMachine] = host_target_machine,
) -> list[ObjectCode | CompileError]:
    """Return the object code of each module, from the store or compiled, or why it has none.

    Several threads compile. `machine` returns a target machine that no other thread uses; a store
    has the code of this processor alone.
    """
    keys = list(map(digest, texts))
    codes: dict[str, ObjectCode | CompileError] = {}
    for key in keys:
        if store is not None and (stored := stored_code(key, store)) is not None:
            codes[key] = stored
    missing = {k: t for k, t in zip(keys, texts, strict=True) if k not in codes}
    with _without_loop_strength_reduction():
        compile_text = functools.partial(_compile, machine)
        compiled = thread_map(compile_text, list(missing.values()), threads)
    for key, code in zip(missing, compiled, strict=True):
        codes[key] = code
        if store is not None and isinstance(code, ObjectCode):
            store.put(STORE_KIND, (*_toolchain(), key), _serialize(code))
    return [codes[key] for key in keys]


def stored_code(key: str, store: Store) -> ObjectCode | None:
    """Return the object code of the module whose text has this digest, if it is in the store."""
    text = store.get(STORE_KIND, (*_toolchain(), key))
    return None if text is None else _deserialize(text)


@functools.lru_cache(maxsize=16)
def digest(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def assembly(text: str, processor: Processor | None = None) -> str:
    """Return the assembly of a module for a processor level, or for this processor, for people."""
    with _without_loop_strength_reduction():
        machine = host_target_machine() if processor is None else target_machine(processor)
        return str(machine.emit_assembly(_optimize(text, machine)))


def _compile(machine: Callable[[], llvm.TargetMachine], text: str) -> ObjectCode | CompileError:
    target = machine()
    try:
        module = _optimize(text, target)
    except CompileError as e:
        return e
    callees = tuple(f.name for f in module.functions if f.is_declaration)
    with ffi.OutputString() as error:
        emit_object = _unlocked("LLVMPY_TargetMachineEmitToMemory")
        buffer = emit_object(target, module, 1, error)
        if not buffer:
            return CompileError(f"LLVM cannot compile the kernel: {error}")
    try:
        start, size = ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer)
        return ObjectCode(ctypes.string_at(start, size), callees)
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def _optimize(text: str, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    """Return the module after the passes, in a context of its own; raise CompileError."""
    try:
        module = llvm.parse_assembly(text, llvm.create_context())
        module.triple, module.data_layout = machine.triple, str(machine.target_data)
        module.verify()
    except RuntimeError as e:
        raise CompileError(f"LLVM rejects the kernel: {e}") from e
    try:
        passes = _IDLE_PASS_MANAGERS.pop()
    except IndexError:  # other threads use all of them
        passes = llvm.create_new_module_pass_manager()
        for name in PASSES:
            getattr(passes, f"add_{name}_pass")()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options())
    _unlocked("LLVMPY_RunNewModulePassManager")(passes, module, builder)
    _IDLE_PASS_MANAGERS.append(passes)
    return module


@functools.cache
def _unlocked(name: str) -> Callable[..., object]:
    """Return a function of llvmlite's library that several threads may run at once.

    llvmlite runs LLVM under one lock, because its modules share a context. Ours do not. The
    result is llvmlite's locked function if the library has no file of its own.
    """
    locked = getattr(ffi.lib, name)
    try:
        function = getattr(ctypes.CDLL(ffi.lib._name), name)
    except (AttributeError, OSError):
        return locked
    function.argtypes, function.restype = locked.argtypes, locked.restype
    return function


@contextmanager
def _without_loop_strength_reduction() -> Iterator[None]:
    """Generate code without loop strength reduction, which takes two fifths of LLVM's time.

    The emitted loops are bound by vector instructions, not by addresses. The option is global to
    the process, so it is restored.
    """
    with CODEGEN_LOCK:
        llvm.set_option("tofuse", "-disable-lsr=true")
        try:
            yield
        finally:
            llvm.set_option("tofuse", "-disable-lsr=false")


@functools.cache
def _toolchain() -> tuple[str, ...]:
    """Return everything but the text that machine code depends on."""
    version = ".".join(map(str, llvm.llvm_version_info))
    processor = (llvm.get_default_triple(), llvm.get_host_cpu_name(), host_features())
    return (llvmlite.__version__, version, *processor, *PASSES)


def _serialize(code: ObjectCode) -> str:
    image = base64.b64encode(code.image).decode("ascii")
    return json.dumps({"called": code.callees, "image": image})


def _deserialize(serialized: str) -> ObjectCode | None:
    try:
        fields = json.loads(serialized)
        return ObjectCode(base64.b64decode(fields["image"], validate=True), tuple(fields["called"]))
    except (ValueError, KeyError, TypeError, binascii.Error):
        return None
