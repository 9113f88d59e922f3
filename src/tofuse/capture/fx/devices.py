"""The device types that tofuse compiles for; on others PyTorch runs every operator."""

from __future__ import annotations

import importlib.util

import torch

_HAS_TRITON = torch.version.hip is None and importlib.util.find_spec("triton") is not None


def on_host(t: torch.Tensor) -> bool:
    """Return whether a tensor is in the memory of the host."""
    return t.device.type == "cpu"


def is_supported(device: torch.device) -> bool:
    """Return whether tofuse compiles for a device."""
    return device.type in SUPPORTED_DEVICES


SUPPORTED_DEVICES = ("cpu", "cuda") if _HAS_TRITON else ("cpu",)
