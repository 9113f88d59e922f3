"""References to Python objects by importable name, for guards that later processes check."""

from __future__ import annotations

import builtins
import enum
import functools
import hashlib
import sys
import sysconfig
import types
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from types import CodeType, ModuleType

import torch

from tofuse.capture.fx.location import is_library_file
from tofuse.config import ENVIRONMENT_OBJECTS
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
    elif any(value is x for x in ENVIRONMENT_OBJECTS.values()):
        return Reference("os", next(k for k, x in ENVIRONMENT_OBJECTS.items() if x is value))
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
    key = id(code)
    known = _places.get(key)
    if known is not None and known[0]() is code:
        return known[1]
    place = f"{code_line(code)} {code_digest(code)}"

    def forget(_: object) -> None:
        _places.pop(key, None)

    _places[key] = weakref.ref(code, forget), place
    return place


STANDARD_LIBRARY = sysconfig.get_path("stdlib")
_places: dict[int, tuple[weakref.ref[CodeType], str]] = {}  # equal code is in several places


def code_line(code: CodeType) -> str:
    """Return the file and the first line of a code object."""
    return f"{code.co_filename}:{code.co_firstlineno}"


def code_digest(code: CodeType) -> str:
    """Return a digest of what a code object does. Its file and line do not count."""
    digest = hashlib.sha256()
    for part in _code_parts(code):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


def _code_parts(code: CodeType) -> Iterable[str]:
    yield repr((code.co_code, code.co_flags, code.co_argcount, code.co_kwonlyargcount))
    yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars))
    yield repr(getattr(code, "co_exceptiontable", b""))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_parts(constant)
        else:
            yield _constant_text(constant)


def _constant_text(constant: object) -> str:
    if isinstance(constant, (tuple, frozenset)):
        texts = map(_constant_text, constant)  # the order of a set differs between processes
        return f"{type(constant)} {sorted(texts) if isinstance(constant, frozenset) else [*texts]}"
    return f"{type(constant)} {constant!r}"


def is_installed(file: str) -> bool:
    """Return whether a file belongs to an installed package."""
    return "site-packages" in file or "dist-packages" in file


@functools.cache
def is_released(file: str) -> bool:
    """Return whether a file belongs to Python, torch or tofuse, whose releases are known."""
    if file.startswith("<frozen "):
        return True
    of_python = file.startswith(STANDARD_LIBRARY) and not is_installed(file)
    return of_python or is_library_file(file)


@functools.cache
def _is_released_module(name: str) -> bool:
    file = getattr(sys.modules.get(name), "__file__", None)
    return name in sys.modules and (file is None or is_released(file)) and name != "__main__"


def is_own_class(cls: type) -> bool:
    """Return whether a class belongs to Python, torch or tofuse."""
    return _is_released_module(cls.__module__)


def is_own_file(file: str) -> bool:
    """Return whether a file belongs to the user: not to Python, torch or an installed package."""
    return not is_released(file) and not is_installed(file)
