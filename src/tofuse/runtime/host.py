"""What this computer is: the processor's name and its caches, as the system tells."""

from __future__ import annotations

import functools
import platform
import re
from dataclasses import dataclass
from pathlib import Path

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Host:
    """`l2_bytes` is one core's, `l3_bytes` the largest shared cache (or L2 where there is none)."""

    name: str
    l2_bytes: int = 1 << 20
    l3_bytes: int = 32 << 20


@functools.cache
def host() -> Host:
    """This computer; ordinary sizes where the system does not tell them."""
    sizes = _cache_sizes(CACHES)
    l2 = sizes.get(2, 1 << 20)
    return Host(_processor(CPU_INFO), l2, max(l2, sizes.get(3, 0)) if sizes else 32 << 20)


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
