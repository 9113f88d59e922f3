"""Compile LLVM IR text to machine code for this processor, and keep it in a store on disk."""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import llvmlite
import llvmlite.binding as llvm

from tofuse.cache.store import Store
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


@functools.cache
def host_target_machine() -> llvm.TargetMachine:
    """Return the target machine of this processor."""
    return new_target_machine()


def new_target_machine() -> llvm.TargetMachine:
    """Return a new target machine of this processor; a linker takes ownership of one."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=host_features(), opt=3, jit=True
    )


def object_code(text: str, store: Store | None) -> ObjectCode:
    """Return the object code of a module, from the store or compiled; raise CompileError."""
    if store is None:
        return compile_object(text, host_target_machine())
    code = stored_code(digest(text), store)
    if code is None:
        code = compile_object(text, host_target_machine())
        store.put(STORE_KIND, (*_toolchain(), digest(text)), _serialize(code))
    return code


def stored_code(key: str, store: Store) -> ObjectCode | None:
    """Return the object code of the module whose text has this digest, if it is in the store."""
    text = store.get(STORE_KIND, (*_toolchain(), key))
    return None if text is None else _deserialize(text)


def digest(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def assembly(text: str) -> str:
    """Return the assembly of a module, for people."""
    with _without_loop_strength_reduction():
        machine = host_target_machine()
        return str(machine.emit_assembly(_optimize(text, machine)))


def compile_object(text: str, machine: llvm.TargetMachine) -> ObjectCode:
    """Return the object code of a module for a processor; raise CompileError."""
    module = _optimize(text, machine)
    callees = tuple(f.name for f in module.functions if f.is_declaration)
    with _without_loop_strength_reduction():
        return ObjectCode(machine.emit_object(module), callees)


def _optimize(text: str, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    try:
        module = llvm.parse_assembly(text)
        module.triple, module.data_layout = machine.triple, str(machine.target_data)
        module.verify()
    except RuntimeError as e:
        raise CompileError(f"LLVM rejects the kernel: {e}") from e
    pass_manager = llvm.create_new_module_pass_manager()
    for name in PASSES:
        getattr(pass_manager, f"add_{name}_pass")()
    pass_manager.run(
        module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options())
    )
    return module


@contextmanager
def _without_loop_strength_reduction() -> Iterator[None]:
    """Generate code without loop strength reduction, which takes two fifths of LLVM's time.

    The emitted loops are bound by vector instructions, not by addresses. The option is global to
    the process, so it is restored.
    """
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
