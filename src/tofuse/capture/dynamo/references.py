"""References to Python objects by importable name, for guards that later processes check."""

from __future__ import annotations

import builtins
import enum
import functools
import hashlib
import os
import sys
import sysconfig
import time
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import CodeType, ModuleType

import torch

from tofuse.capture.fx.location import is_library_file
from tofuse.errors import UnsupportedError

LITERALS = (bool, int, float, complex, str, bytes, type(None), type(...))
TORCH_VALUES = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
CONTAINERS = (tuple, list, set, frozenset, dict, slice, range)


@dataclass(frozen=True)
class Reference:
    """An object by the module and the qualified name under which it is found; "": the module."""

    module: str
    name: str

    def resolve(self) -> object:
        """Return the object. Raises LookupError or AttributeError if it isn't there.

        Nothing is imported: a program that reads a module has imported it.
        """
        module = sys.modules[self.module]
        return attrgetter(self.name)(module) if self.name else module


def reference_to(value: object) -> Reference:
    """Return the reference to a module, class, function or member of an enumeration.

    Raises UnsupportedError for an object that no name leads to.
    """
    if isinstance(value, ModuleType):
        found = Reference(value.__name__, "")
    elif isinstance(value, enum.Enum):
        owner = type(value)
        found = Reference(owner.__module__, f"{owner.__qualname__}.{value.name}")
    elif value is vars(builtins):
        return Reference("builtins", "__dict__")
    elif isinstance(value, type) and value in UNNAMED_TYPES:
        found = Reference("types", UNNAMED_TYPES[value])
    else:
        found = Reference(
            str(getattr(value, "__module__", None)), str(getattr(value, "__qualname__", None))
        )
    name = str(getattr(value, "__name__", found.name))
    for candidate in (found, *(Reference(module, name) for module in OTHER_MODULES)):
        try:
            if candidate.resolve() is value:
                return candidate
        except (LookupError, AttributeError):
            continue
    raise UnsupportedError(f"no name leads to {type(value).__name__} {found.module}.{found.name}")


# such as FunctionType, whose name is "function"
UNNAMED_TYPES = {t: name for name, t in vars(types).items() if isinstance(t, type)}
# where functions are found whose `__module__` is None or private
OTHER_MODULES = (
    "builtins",
    "torch",
    "torch.nn.functional",
    "torch.functional",
    "torch._C",
    "torch._C._nn",
    "torch._C._linalg",
    "torch._C._fft",
    "torch._C._special",
    "math",
    "operator",
)


def is_constant(value: object) -> bool:
    """Return whether a value is a number, text or setting of torch, or a container of such."""
    if type(value) in (*LITERALS, *TORCH_VALUES):
        return True
    if type(value) in (slice, range):
        return all(is_constant(getattr(value, name)) for name in ("start", "stop", "step"))
    if isinstance(value, Mapping) and type(value) is dict:
        return all(is_constant(x) for item in value.items() for x in item)
    if type(value) in CONTAINERS:
        assert isinstance(value, Iterable)
        return all(map(is_constant, value))
    return False


def same_constant(a: object, b: object) -> bool:
    """Return whether two constants are of one type and have the same bits: 0.0 is not -0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (float, complex)):
        return repr(a) == repr(b)
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(map(same_constant, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return same_constant(list(a.items()), list(b.items()))
    return a == b


def code_place(code: CodeType) -> str:
    """Return the file, line and digest of a code object.

    Equal code in two files may read other global variables.
    """
    return f"{code.co_filename}:{code.co_firstlineno} {code_digest(code)}"


def code_digest(code: CodeType) -> str:
    """Return a digest of what a code object does. Its file and line do not count."""
    digest = hashlib.sha256()
    for part in _code_parts(code):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


def _code_parts(code: CodeType) -> Iterable[str]:
    yield repr((code.co_code, code.co_flags, code.co_argcount, code.co_kwonlyargcount))
    yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_parts(constant)
        else:
            is_set = isinstance(constant, frozenset)  # whose order differs between processes
            yield f"{type(constant)} {sorted(map(repr, constant)) if is_set else constant!r}"


def source_files(codes: Iterable[CodeType], references: Iterable[Reference]) -> dict[str, str]:
    """Return the digest of each file that defines traced code or a referenced object.

    Files of Python, torch and tofuse are left out, because their release is known. Raises
    UnsupportedError for code without a file, but for the methods that dataclasses generate, which
    follow from their class.
    """
    names: dict[str, None] = {}
    for code in codes:
        if code.co_filename.startswith("<frozen "):  # of Python
            continue
        if code.co_filename.startswith("<"):
            if not str(getattr(code, "co_qualname", code.co_name)).startswith(DATACLASS):
                raise UnsupportedError(f"{code.co_name} comes from no file")
            continue
        names[code.co_filename] = None
    for module in _modules(references):
        file = getattr(sys.modules.get(module), "__file__", None)
        if file is not None:
            names[file] = None
    return {name: digest_file(name) for name in names if not _is_released(name)}


def _is_released(file: str) -> bool:
    """Return whether a file belongs to Python, torch or tofuse."""
    is_installed = "site-packages" in file or "dist-packages" in file
    of_python = file.startswith(sysconfig.get_path("stdlib")) and not is_installed
    return of_python or is_library_file(file)


def _modules(references: Iterable[Reference]) -> Iterable[str]:
    """Yield the modules of referenced objects, and of the bases of referenced classes."""
    for reference in references:
        yield reference.module
        value = reference.resolve()
        if isinstance(value, type):
            yield from (base.__module__ for base in value.__mro__)


@functools.cache
def digest_file(name: str) -> str:
    """Return the digest of a file's content.

    Raises UnsupportedError if it cannot be read, or was written after this process has started: it
    may not be the code that runs.
    """
    try:
        if Path(name).stat().st_mtime >= process_start():
            raise UnsupportedError(f"{name} was written after this process has started")
        return hashlib.sha256(Path(name).read_bytes()).hexdigest()
    except OSError as error:
        raise UnsupportedError(f"{name} cannot be read") from error


@functools.cache
def process_start() -> float:
    """Return when this process has started, in seconds of `time.time`; on Linux alone.

    Elsewhere it is when this module was imported.
    """
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK") + ROUNDING
    except (OSError, ValueError, IndexError):
        return IMPORTED


IMPORTED = time.time()
ROUNDING = 0.05  # seconds: of the start; Python reads a file later
DATACLASS = "__create_fn__.<locals>."  # of the code that `dataclasses` generates, from Python 3.11
