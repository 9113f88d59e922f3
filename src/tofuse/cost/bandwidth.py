"""Memory bandwidth: the time of memory traffic, by the memory level that holds its footprint."""

from __future__ import annotations

from tofuse.cost.machine import Machine

# footprints, in L3 sizes, between which part of the rereads hit L3; fitted to the results that
# bypass the caches in docs/measurements.md
PARTIAL_L3 = (0.75, 1.25)


def traffic_us(machine: Machine, nbytes: float) -> float:
    """Return the microseconds of reading and writing `nbytes` bytes on all threads."""
    return nbytes / bandwidth(machine, nbytes, machine.threads) / 1e3


def bandwidth(machine: Machine, footprint: float, threads: int) -> float:
    """Return the bytes per nanosecond of the nearest memory that holds `footprint` bytes."""
    if footprint <= machine.l2_bytes * threads:
        return machine.l2_rate * threads
    near = min(machine.l3_rate * threads, machine.shared_rate)
    far = min(machine.core_rate * threads, machine.memory_rate)
    low, high = (ratio * machine.l3_bytes for ratio in PARTIAL_L3)
    if footprint <= low:
        return near
    if footprint >= high:
        return far
    miss_rate = (footprint - low) / (high - low)
    return 1 / ((1 - miss_rate) / near + miss_rate / far)
