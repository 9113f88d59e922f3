"""Query the host's processor name and cache sizes."""

from __future__ import annotations

import functools
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
CPU_INFO = Path("/proc/cpuinfo")
L3_PER_CORE = 16 << 20  # usable bytes of the shared cache; measured in docs/measurements.md


@dataclass(frozen=True)
class Host:
    """The processor: `l2_bytes` per core, `l3_bytes` of the shared cache (L2 if there is none).

    A process on a few cores of a large processor, such as a virtual machine, shares its cache with
    others. So `l3_bytes` is at most `L3_PER_CORE` for each core that the process may run on.
    """

    name: str
    l2_bytes: int = 1 << 20
    l3_bytes: int = 32 << 20


@functools.cache
def host(caches: Path = CACHES, cores: int | None = None) -> Host:
    """Return the host's processor, with default sizes if the system does not report them.

    `cores` are those that the process may run on; None asks the system.
    """
    sizes = _cache_sizes(caches)
    l2 = sizes.get(2, 1 << 20)
    l3 = min(sizes.get(3, 0), L3_PER_CORE * (cores or available_cores())) if sizes else 32 << 20
    return Host(_processor(CPU_INFO), l2, max(l2, l3))


def available_cores() -> int:
    """Return the number of cores that the process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _processor(info: Path) -> str:
    text = _read(info)
    found = re.search(r"^(?:model name|Processor|CPU part)\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def _cache_sizes(folder: Path) -> dict[int, int]:
    """Return the bytes of the data caches by level."""
    sizes: dict[int, int] = {}
    for path in sorted(folder.glob("index*")):
        level, size = _read(path / "level").strip(), _read(path / "size").strip()
        found = re.fullmatch(r"(\d+)([KMG]?)", size)
        if level.isdigit() and found and _read(path / "type").strip() != "Instruction":
            unit = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[found[2]]
            sizes[int(level)] = int(found[1]) * unit
    return sizes


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
