"""Memory of this process: its current size and its peak."""

import ctypes
import ctypes.util
import gc
import resource
from pathlib import Path

import tofuse

STATUS_FILE = Path("/proc/self/status")
CLEAR_REFS_FILE = Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # proc(5): sets the peak to the current size


def reset_peak() -> int:
    """Free unused memory, reset the peak, and return the bytes held now.

    A system that cannot reset the peak (any but Linux) returns the old peak; growth is then what
    later steps need beyond the first.
    """
    gc.collect()
    tofuse.empty_cache()
    if not CLEAR_REFS_FILE.exists():
        return peak()
    name = ctypes.util.find_library("c")
    if name is not None:
        trim = getattr(ctypes.CDLL(name), "malloc_trim", None)  # glibc has it, musl has not
        if trim is not None:
            trim(0)
    try:
        CLEAR_REFS_FILE.write_text(RESET_PEAK)
    except OSError:
        return peak()
    return status_bytes("VmRSS")


def peak() -> int:
    """Return the peak bytes since the last reset."""
    if STATUS_FILE.exists():
        return status_bytes("VmHWM")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def status_bytes(key: str) -> int:
    """Return a size from the status file."""
    for line in STATUS_FILE.read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return 0
