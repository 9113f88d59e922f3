"""Which backend a device has."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tofuse.backends.cpu.backend import CpuBackend
from tofuse.backends.cuda.backend import CudaBackend
from tofuse.backends.target import Backend
from tofuse.cost.machine import Machine
from tofuse.ir.schedule import Target

# from the device, the processor and its costs for decisions
MakeBackend = Callable[[str, Target, Machine], Backend]


def _cpu(device: str, target: Target, machine: Machine) -> Backend:
    return CpuBackend(target, machine)


def _cuda(device: str, target: Target, machine: Machine) -> Backend:
    return CudaBackend(device)


BACKENDS: dict[str, MakeBackend] = {"cpu": _cpu, "cuda": _cuda}  # by the type of the device


def backend_of(
    device: str,
    target: Target,
    machine: Machine,
    backends: Mapping[str, MakeBackend] = BACKENDS,
) -> Backend:
    """Return a backend for a device such as "cpu" or "cuda:0".

    Another device gets one for its costs alone: PyTorch runs all of its operators.
    """
    make = backends.get(device.partition(":")[0], _cuda)
    return make(device, target, machine)
