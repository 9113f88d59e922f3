"""Compile the launches of kernels, and describe the machine code of each in a row."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from suites.gpu.lower import GpuKernel
from suites.gpu.machine_code import MachineCode, read_machine_code
from tofuse.backends.cuda.cost.gpu_machine import GPUS
from tofuse.backends.cuda.triton.emit import launch_parameters
from tofuse.backends.cuda.triton.load import LaunchSpec, TritonModule
from tofuse.ir.tile import GpuBinary

# The card for which kernels of each capability are compiled.
CARDS = {gpu.capability: gpu for gpu in GPUS if gpu.name in ("A100", "H100", "B200")}


@dataclass(frozen=True)
class Row:
    """The machine code of one launch of a kernel, for one capability.

    `launched` is the number of program instances, `fit` how many the GPU holds at a time.
    """

    launch: str
    capability: int
    registers: int
    warps: int
    stack: int
    local: int
    shared: int
    occupancy: int  # percent
    launched: int
    fit: int
    wide: int
    accesses: int
    barriers: int

    @property
    def name(self) -> str:
        return f"{self.launch} sm_{self.capability}"

    @property
    def case(self) -> str:
        """The case that compiled the launch: `softmax/bf16/sm_90`."""
        return f"{self.launch.rsplit('/', 2)[0]}/sm_{self.capability}"

    @property
    def values(self) -> tuple[int, ...]:
        """The numbers of the row, in the order of its fields."""
        return tuple(v for v in asdict(self).values() if isinstance(v, int))

    def __str__(self) -> str:
        return " ".join([self.launch, *map(str, self.values)])

    @staticmethod
    def parse(text: str) -> "Row":
        launch, *numbers = text.split()
        return Row(launch, *map(int, numbers))


def compile_kernels(program: str, kernels: Sequence[GpuKernel], capability: int) -> dict[str, Row]:
    """Return a row for each distinct launch of the kernels of a program, by its text."""
    rows: dict[str, Row] = {}
    counts: dict[str, int] = {}
    for kernel in kernels:
        specs = [
            LaunchSpec(tuple(launch_parameters(nest)), nest.tiling.warps)
            for nest in kernel.program.nests
        ]
        module = TritonModule(kernel.text, specs, capability)
        for k, nest in enumerate(kernel.program.nests):
            aligned = kernel.aligned(k)
            text = f"{nest.tiling!r} {_count(kernel, k)} {aligned} {kernel.launch_text(k)}"
            key = hashlib.sha256(text.encode()).hexdigest()[:16]
            if key in rows:
                continue
            number = counts[kernel.phase] = counts.get(kernel.phase, -1) + 1
            binary = module.binary(k, aligned)
            name = f"{program}/{kernel.phase}/{number}"
            rows[key] = make_row(name, capability, binary, _count(kernel, k))
    return rows


def _count(kernel: GpuKernel, k: int) -> int:
    return kernel.program.nests[k].instance_count(kernel.sizes)


def make_row(launch: str, capability: int, binary: GpuBinary, launched: int) -> Row:
    """Return the row of a launch, from its machine code."""
    code: MachineCode = read_machine_code(binary.code)
    warps = binary.threads // 32
    gpu = CARDS[capability]
    held = gpu.instances(code.registers, binary.shared, warps)
    return Row(
        launch,
        capability,
        code.registers,
        warps,
        code.stack,
        code.local,
        binary.shared,
        100 * held * warps // gpu.max_warps,
        launched,
        held * gpu.multiprocessors,
        code.wide,
        code.accesses,
        code.barriers,
    )
