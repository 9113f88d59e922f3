"""Occupancy: how many program instances of a kernel a multiprocessor holds.

The limits are those of the CUDA C++ Programming Guide, "Technical Specifications per Compute
Capability"; the units of allocation are those of the CUDA Occupancy Calculator.
"""

from dataclasses import dataclass

MAX_WARPS = 64  # a multiprocessor, of each of these capabilities
MAX_INSTANCES = 32
REGISTERS = 65536
REGISTER_UNIT = 256  # registers of a warp are allocated in multiples of this
SCHEDULERS = 4  # each has a quarter of the registers and of the warps
SHARED_UNIT = 128
RESERVED_SHARED = 1024  # an instance, for the system


@dataclass(frozen=True)
class Gpu:
    """A GPU: its multiprocessors, and the bytes of shared memory of each."""

    name: str
    multiprocessors: int
    shared: int


GPUS = {
    80: Gpu("A100", 108, 164 * 1024),
    90: Gpu("H100", 132, 228 * 1024),
    100: Gpu("B200", 148, 228 * 1024),
}


def instances_per_multiprocessor(capability: int, registers: int, shared: int, warps: int) -> int:
    """Return how many instances fit, by their registers, shared memory and warps."""
    of_warp = -(-32 * registers // REGISTER_UNIT) * REGISTER_UNIT
    warps_by_registers = REGISTERS // SCHEDULERS // of_warp * SCHEDULERS
    nbytes = -(-(shared + RESERVED_SHARED) // SHARED_UNIT) * SHARED_UNIT
    return min(
        MAX_INSTANCES,
        MAX_WARPS // warps,
        warps_by_registers // warps,
        GPUS[capability].shared // nbytes,
    )
