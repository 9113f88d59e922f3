"""The table of GPUs: names as PyTorch reports them, cards it lacks, and occupancy."""

import pytest

from tofuse.backends.cuda.cost.gpu_machine import GPUS, gpu_machine
from tofuse.ir.tile import GpuTarget

H100 = gpu_machine("NVIDIA H100 80GB HBM3", 90, 132)


@pytest.mark.parametrize(
    ("name", "capability", "multiprocessors", "found"),
    [
        ("NVIDIA A100-SXM4-80GB", 80, 108, "A100"),
        ("NVIDIA H100 80GB HBM3", 90, 132, "H100"),
        ("NVIDIA H200", 90, 132, "H200"),
        ("NVIDIA B200", 100, 148, "B200"),
        ("NVIDIA L4", 89, 58, "L4"),
        ("NVIDIA GeForce RTX 4090", 89, 128, "RTX 4090"),
        ("NVIDIA L40S", 89, 142, "NVIDIA L40S"),
    ],
)
def test_cards_by_name(name: str, capability: int, multiprocessors: int, found: str):
    gpu = gpu_machine(name, capability, multiprocessors)
    assert (gpu.name, gpu.multiprocessors) == (found, multiprocessors)


def test_a_part_of_a_card_has_a_part_of_its_rates():
    whole, part = gpu_machine("unknown", 90, 132), gpu_machine("unknown", 90, 66)
    assert part.memory_rate == whole.memory_rate / 2
    assert part.half_flops == whole.half_flops / 2


def test_the_target_has_the_shared_memory_of_the_card():
    for gpu in GPUS:
        assert GpuTarget(gpu.multiprocessors, gpu.capability).shared_bytes == gpu.shared_bytes


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "instances"),
    [
        (32, 0, 4, 16),  # all 64 warps
        (32, 0, 1, 32),  # most instances
        (255, 0, 8, 1),
        (128, 0, 16, 1),
        (96, 0, 8, 2),
        (40, 100 * 1024, 4, 2),  # by shared memory
    ],
)
def test_occupancy(registers: int, shared: int, warps: int, instances: int):
    assert H100.instances(registers, shared, warps) == instances
