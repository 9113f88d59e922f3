"""The user's code whose lookups another process cannot compare.

Dynamo does not tell which code raised an exception that was caught, which attributes an object
lacked, or what it took from this process alone. The rules hold for code outside of installed
packages: these change with their release, and their handlers are followed by name (see `Scope`).
"""

from __future__ import annotations

import dis
import sys
from collections import ChainMap, UserDict
from collections.abc import Mapping
from itertools import pairwise
from types import CodeType, FunctionType

from tofuse.capture.dynamo.code_names import nested_codes
from tofuse.capture.dynamo.references import is_own_file
from tofuse.errors import UnsupportedError

HANDLER_OPERATIONS = ("PUSH_EXC_INFO", "SETUP_FINALLY")  # the latter in Python 3.10
SUPPRESSING_MANAGERS = frozenset(("suppress", "ExitStack"))  # of contextlib
# They read a whole namespace, or what holds in one process alone.
UNREPEATABLE_NAMES = frozenset(
    (
        *("vars", "__dict__", "globals", "locals", "eval", "exec", "__slots__"),
        *("find_spec", "getrecursionlimit"),
    )
)
PROCESS_LOCAL_FUNCTIONS = ("hash", "id")  # global names
CATCHING_CLASSES = (ChainMap, UserDict)


def check_code(code: CodeType) -> None:
    """Raise UnsupportedError if traced code catches exceptions, or reads a whole namespace."""
    if not is_own_file(code.co_filename):
        return
    for part in nested_codes(code):
        if _catches(part):
            raise UnsupportedError(
                f"{part.co_name} catches exceptions, and Dynamo does not tell where they come from"
            )
        names = UNREPEATABLE_NAMES.intersection(part.co_names)
        if any(name in part.co_names for name in PROCESS_LOCAL_FUNCTIONS):
            loads = (x for x in dis.get_instructions(part) if x.opname == "LOAD_GLOBAL")
            names |= {x.argval for x in loads if x.argval in PROCESS_LOCAL_FUNCTIONS}
        if names:
            raise UnsupportedError(f"{part.co_name} reads {min(names)}")


def check_class(cls: type) -> None:
    """Raise UnsupportedError if a class answers for attributes or keys that its instances lack."""
    if cls in CATCHING_CLASSES:
        raise UnsupportedError(f"{cls.__qualname__} catches exceptions")
    for name in ("__getattr__", "__getattribute__"):
        method = vars(cls).get(name)
        if isinstance(method, FunctionType) and is_own_file(method.__code__.co_filename):
            raise UnsupportedError(f"{cls.__qualname__} has a method {name}")
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if file is None or not is_own_file(file):
        return
    if Mapping in cls.__mro__:
        raise UnsupportedError(f"{cls.__qualname__} is a mapping, which catches exceptions")
    if getattr(cls, "_is_runtime_protocol", False):
        raise UnsupportedError(f"{cls.__qualname__} is a protocol, which looks at instances")


def _catches(code: CodeType) -> bool:
    operations = [dis.opname[x] for x in code.co_code[::2]]
    handlers = sum(map(operations.count, HANDLER_OPERATIONS)) - operations.count(
        "WITH_EXCEPT_START"
    )
    if handlers > 0 or not SUPPRESSING_MANAGERS.isdisjoint(code.co_names):
        return True
    return code.co_name == "__exit__" and not _returns_false(code)


def _returns_false(code: CodeType) -> bool:
    """Return whether code returns nothing but constants that are false."""
    instructions = list(dis.get_instructions(code))
    for before, instruction in pairwise(instructions):
        if instruction.opname == "RETURN_VALUE":
            if before.opname != "LOAD_CONST" or before.argval:
                return False
        elif instruction.opname == "RETURN_CONST" and instruction.argval:
            return False
    return True
