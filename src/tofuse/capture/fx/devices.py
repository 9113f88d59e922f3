"""The device types that tofuse compiles for; on others PyTorch runs every operator."""

from __future__ import annotations

import importlib.util

import torch


def _supported_devices() -> tuple[str, ...]:
    """Return the CPU and, if Triton is installed, NVIDIA's GPUs."""
    nvidia = torch.version.hip is None and importlib.util.find_spec("triton") is not None
    return ("cpu", "cuda") if nvidia else ("cpu",)


SUPPORTED_DEVICES = _supported_devices()
