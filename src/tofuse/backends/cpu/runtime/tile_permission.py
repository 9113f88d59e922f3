"""The permission to use the tiles of AMX, which Linux gives a process that asks for it."""

from __future__ import annotations

import ctypes
import functools
import platform
import sys

ARCH_PRCTL_SYSCALL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA = 158, 0x1023, 18


@functools.cache
def request_tiles() -> bool:
    """Ask for the tiles, for all threads of this process; return whether it may use them.

    The processor must have them.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    try:
        call = ctypes.CDLL(None).syscall
    except (OSError, AttributeError):
        return False
    call.restype, call.argtypes = ctypes.c_long, [ctypes.c_long] * 3
    return int(call(ARCH_PRCTL_SYSCALL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)) == 0
