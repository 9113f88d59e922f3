"""Machine function: a C function of generated code, which keeps its code in memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

Entry = Callable[[object], int]  # its argument is a ctypes array, or bytes, of the context's words


def machine_function(address: int, code: object) -> Entry:
    """Return the C function at an address; `code` owns the memory, and lives as long."""
    function = _PROTOTYPE(address)
    vars(function)["code"] = code
    return function


def c_function(function: Entry) -> Entry:
    """Return a C function that calls a Python function."""
    return _PROTOTYPE(function)


def function_address(function: Callable[..., object]) -> int:
    """Return the address of a C function."""
    address = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]  # a C function
    assert address is not None
    return address


_PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
