"""What memory traffic and launches cost on this machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """Copy bandwidth in bytes a second, seconds per launch, and the cache a value may stay in."""

    bandwidth: float = 40e9
    launch: float = 5e-6
    cache_bytes: int = 1 << 20


def predicted_us(machine: Machine, nbytes: int, launches: int) -> float:
    """Microseconds that this much traffic and this many launches take."""
    return 1e6 * (nbytes / machine.bandwidth + launches * machine.launch)
