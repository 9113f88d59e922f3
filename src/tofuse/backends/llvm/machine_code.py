"""LLVM IR text -> machine code for this processor, made once and kept on disk."""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import llvmlite
import llvmlite.binding as llvm

from tofuse.errors import CompileError

# What our text needs: it is already vectorised, unrolled and hoisted. A fifth of the time of LLVM's
# O2 for the same machine code; see docs/measurements.md.
PASSES = (
    "always_inliner",
    "sroa",
    "new_gvn",
    "instruction_combine",
    "simplify_cfg",
    "loop_rotate",
    "global_dead_code_eliminate",
)
KIND = "code"


class Kept(Protocol):
    """Texts by key that outlive the process."""

    def get(self, kind: str, key: Sequence[str]) -> str | None: ...

    def put(self, kind: str, key: Sequence[str], text: str) -> None: ...


@dataclass(frozen=True)
class Code:
    """An object file, and the functions that it calls."""

    image: bytes
    called: tuple[str, ...]


def host_features() -> str:
    """What this processor can do, full-width vectors included."""
    features = llvm.get_host_cpu_features()
    features["prefer-256-bit"] = False
    return str(features.flatten())


@functools.cache
def host_machine() -> llvm.TargetMachine:
    """Code generation for this processor."""
    return new_machine()


def new_machine() -> llvm.TargetMachine:
    """Code generation for this processor; a linker takes one over."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=host_features(), opt=3, jit=True
    )


def code_of(text: str, kept: Kept | None) -> Code:
    """The machine code of a module, as it was kept or compiled; raises CompileError."""
    if kept is None:
        return _compile(text)
    code = kept_code(digest(text), kept)
    if code is None:
        code = _compile(text)
        kept.put(KIND, (*_how(), digest(text)), _write(code))
    return code


def kept_code(key: str, kept: Kept) -> Code | None:
    """The machine code of the module whose text has this digest, if it was kept."""
    found = kept.get(KIND, (*_how(), key))
    return None if found is None else _read(found)


def digest(text: str) -> str:
    """What stands for a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def assembly(text: str) -> str:
    """The machine code of a module as text, for people."""
    with _addresses_as_they_are():
        return str(host_machine().emit_assembly(_optimised(text)))


def _compile(text: str) -> Code:
    module = _optimised(text)
    called = tuple(f.name for f in module.functions if f.is_declaration)
    with _addresses_as_they_are():
        return Code(host_machine().emit_object(module), called)


def _optimised(text: str) -> llvm.ModuleRef:
    machine = host_machine()
    try:
        module = llvm.parse_assembly(text)
        module.triple, module.data_layout = machine.triple, str(machine.target_data)
        module.verify()
    except RuntimeError as e:
        raise CompileError(f"LLVM rejects the kernel: {e}") from e
    passes = llvm.create_new_module_pass_manager()
    for name in PASSES:
        getattr(passes, f"add_{name}_pass")()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    return module


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


@functools.cache
def _how() -> tuple[str, ...]:
    """All that machine code depends on beside its text."""
    version = ".".join(map(str, llvm.llvm_version_info))
    processor = (llvm.get_default_triple(), llvm.get_host_cpu_name(), host_features())
    return (llvmlite.__version__, version, *processor, *PASSES)


def _write(code: Code) -> str:
    image = base64.b64encode(code.image).decode("ascii")
    return json.dumps({"called": code.called, "image": image})


def _read(text: str) -> Code | None:
    try:
        found = json.loads(text)
        return Code(base64.b64decode(found["image"], validate=True), tuple(found["called"]))
    except (ValueError, KeyError, TypeError, binascii.Error):
        return None
