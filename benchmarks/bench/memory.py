"""How much memory this process holds, and how much it has held at most."""

import ctypes
import ctypes.util
import gc
import resource
from pathlib import Path

import tofuse

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # proc(5): sets the peak back to what is held now


def start_peak() -> int:
    """Give back what is free, start a new peak, and return the bytes held now.

    Where the system cannot start a new peak (any but Linux), the old one is returned: growth is
    then what later steps need beyond the first.
    """
    gc.collect()
    tofuse.empty_cache()
    if not CLEAR.exists():
        return peak()
    name = ctypes.util.find_library("c")
    if name is not None:
        trim = getattr(ctypes.CDLL(name), "malloc_trim", None)  # glibc has it, musl has not
        if trim is not None:
            trim(0)
    try:
        CLEAR.write_text(RESET_PEAK)
    except OSError:
        return peak()
    return status("VmRSS")


def peak() -> int:
    """The most bytes held since the peak was started."""
    if STATUS.exists():
        return status("VmHWM")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def status(key: str) -> int:
    for line in STATUS.read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return 0
