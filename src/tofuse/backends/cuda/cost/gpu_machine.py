"""What limits kernels on a GPU: the processors, the memories, and how many instances fit.

Sources: NVIDIA's data sheets of the cards, and the tables of the CUDA C++ Programming Guide,
"Compute Capabilities". Units of allocation are those of the CUDA Occupancy Calculator. Bandwidths
are what a copy reaches, 0.9 of the data sheet's as measured on an H200 (docs/measurements.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tofuse.ir.tile import SHARED_KILOBYTES, GpuTarget

REGISTERS = 65536  # of a multiprocessor, of all these cards
REGISTER_UNIT = 256  # registers of a warp are allocated in multiples of this
MAX_REGISTERS = 255  # of a thread
MAX_INSTANCES, MAX_INSTANCES_OF_48_WARPS = 32, 24  # of a multiprocessor, by its most warps
SCHEDULERS = 4  # each has a quarter of the registers and of the warps
SHARED_UNIT = 128
RESERVED_SHARED = 1024  # an instance, for the system
COPY_SHARE = 0.9  # of the data sheet's bandwidth
L2_RATE = 2.2  # of a hit, over the bandwidth of memory: not measured


@dataclass(frozen=True)
class GpuMachine:
    """A GPU. Rates are bytes a nanosecond (GB/s) and operations a nanosecond."""

    name: str
    capability: int  # such as 90
    multiprocessors: int
    ghz: float  # the clock under load
    memory_rate: float
    l2_bytes: int
    half_flops: float  # of matrix instructions on bfloat16 and float16, dense
    launch_us: float = 2.0  # from one kernel to the next of a graph: "GPU kernels"

    @property
    def shared_bytes(self) -> int:
        """The shared memory of a multiprocessor."""
        return GpuTarget(self.multiprocessors, self.capability).shared_bytes

    @property
    def max_warps(self) -> int:
        """The most warps of a multiprocessor."""
        return 64 if self.capability in SHARED_KILOBYTES else 48

    @property
    def float_lanes(self) -> int:
        """Float32 operations a clock of a multiprocessor."""
        return 64 if self.capability <= 80 else 128

    @property
    def issue_rate(self) -> float:
        """Instructions of a warp a nanosecond, of all schedulers."""
        return self.multiprocessors * SCHEDULERS * self.ghz

    @property
    def float_rate(self) -> float:
        """Float32 instructions of a warp a nanosecond."""
        return self.multiprocessors * self.float_lanes / 32 * self.ghz

    @property
    def special_rate(self) -> float:
        """Instructions of a warp a nanosecond of the special function units, 16 lanes wide."""
        return self.multiprocessors * 0.5 * self.ghz

    @property
    def l2_rate(self) -> float:
        return self.memory_rate * L2_RATE

    def instances(self, registers: int, shared: int, warps: int) -> int:
        """Return how many program instances a multiprocessor holds.

        They have so many registers a thread, bytes of shared memory, and warps.
        """
        of_warp = -(-32 * max(1, registers) // REGISTER_UNIT) * REGISTER_UNIT
        warps_by_registers = REGISTERS // SCHEDULERS // of_warp * SCHEDULERS
        nbytes = -(-(shared + RESERVED_SHARED) // SHARED_UNIT) * SHARED_UNIT
        return min(
            MAX_INSTANCES if self.max_warps == 64 else MAX_INSTANCES_OF_48_WARPS,
            self.max_warps // warps,
            warps_by_registers // warps,
            self.shared_bytes // nbytes,
        )


def _gpu(
    name: str,
    capability: int,
    multiprocessors: int,
    ghz: float,
    data_sheet_rate: float,
    l2_megabytes: int,
    half_teraflops: float,
) -> GpuMachine:
    memory_rate, l2_bytes = data_sheet_rate * COPY_SHARE, l2_megabytes << 20
    half_flops = 1000.0 * half_teraflops
    return GpuMachine(name, capability, multiprocessors, ghz, memory_rate, l2_bytes, half_flops)


GPUS = (
    _gpu("A100", 80, 108, 1.41, 2039, 40, 312),
    _gpu("H100", 90, 132, 1.75, 3350, 50, 989),
    _gpu("H200", 90, 132, 1.75, 4800, 50, 989),
    _gpu("B200", 100, 148, 1.85, 8000, 126, 2250),
    _gpu("L4", 89, 58, 2.04, 300, 48, 121),
    _gpu("RTX 4090", 89, 128, 2.52, 1008, 72, 165),
)
DEFAULT_GPU = GPUS[2]  # where no GPU is there: docs/gpu.md has this one's times


def gpu_machine(name: str, capability: int, multiprocessors: int) -> GpuMachine:
    """Return the costs of a GPU, by its name as PyTorch reports it ("NVIDIA H100 80GB HBM3").

    A card that the table lacks is taken as the one of the closest capability. Rates are in
    proportion to the multiprocessors, also of a part of a card.
    """
    words = name.upper().split()
    for gpu in GPUS:
        named = gpu.name in name.upper() if " " in gpu.name else gpu.name in _parts(words)
        if named and gpu.capability == capability:
            return _scaled(gpu, multiprocessors)
    # capability 12.0 is that of cards like those of 8.9
    like = 89 if capability >= 120 else capability
    closest = _scaled(min(GPUS, key=lambda g: abs(g.capability - like)), multiprocessors)
    return replace(closest, name=name, capability=capability)


def _scaled(gpu: GpuMachine, multiprocessors: int) -> GpuMachine:
    """Return a card of so many multiprocessors, with rates and cache in proportion."""
    scale = multiprocessors / gpu.multiprocessors
    return replace(
        gpu,
        multiprocessors=multiprocessors,
        memory_rate=gpu.memory_rate * scale,
        half_flops=gpu.half_flops * scale,
        l2_bytes=int(gpu.l2_bytes * scale),
    )


def _parts(words: list[str]) -> set[str]:
    """Return the words of a name, and what stands between hyphens: "A100-SXM4-80GB"."""
    return {part for word in words for part in word.split("-")}
