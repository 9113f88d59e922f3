"""Which backend a device has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tofuse.backends.cpu.backend import CpuBackend, KernelPass, NestPass
from tofuse.backends.cuda.backend import CudaBackend
from tofuse.backends.target import Backend
from tofuse.cost.machine import Machine
from tofuse.ir.schedule import Target

# from the device, the processor and its costs for decisions
MakeBackend = Callable[[str, Target, Machine], Backend]


def make_backends(
    kernel_passes: Sequence[KernelPass], nest_passes: Sequence[NestPass]
) -> dict[str, MakeBackend]:
    """Return what makes the backends, by the type of their device; the CPU's runs the passes."""

    def make_cpu(device: str, target: Target, machine: Machine) -> Backend:
        return CpuBackend(target, machine, kernel_passes, nest_passes)

    return {"cpu": make_cpu, "cuda": _make_cuda}


def _make_cuda(device: str, target: Target, machine: Machine) -> Backend:
    return CudaBackend(device)


def backend_of(
    device: str, target: Target, machine: Machine, backends: Mapping[str, MakeBackend]
) -> Backend:
    """Return a backend for a device such as "cpu" or "cuda:0".

    A device without a backend gets the CUDA backend, which is asked for its costs alone: PyTorch
    runs all operators there.
    """
    make = backends.get(device.partition(":")[0], _make_cuda)
    return make(device, target, machine)
