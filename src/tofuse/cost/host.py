"""What this computer is: the processor's name and its caches, as the system tells."""

from __future__ import annotations

import functools
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
CPU_INFO = Path("/proc/cpuinfo")
L3_SHARE = 16 << 20  # bytes of the shared cache that a core counts on: see docs/measurements.md


@dataclass(frozen=True)
class Host:
    """`l2_bytes` is one core's, `l3_bytes` the largest shared cache (or L2 where there is none).

    Where we have a few cores of a large processor, a virtual machine's for example, others use its
    cache too: it counts as no more than `L3_SHARE` for each core that we may run on.
    """

    name: str
    l2_bytes: int = 1 << 20
    l3_bytes: int = 32 << 20


@functools.cache
def host() -> Host:
    """This computer; ordinary sizes where the system does not tell them."""
    sizes = _cache_sizes(CACHES)
    l2 = sizes.get(2, 1 << 20)
    l3 = min(sizes.get(3, 0), L3_SHARE * _cores()) if sizes else 32 << 20
    return Host(_processor(CPU_INFO), l2, max(l2, l3))


def _cores() -> int:
    """How many the system lets us run on."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux has it
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _processor(info: Path) -> str:
    text = _read(info)
    found = re.search(r"^(?:model name|Processor|CPU part)\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def _cache_sizes(folder: Path) -> dict[int, int]:
    """Bytes of the data caches by level."""
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
