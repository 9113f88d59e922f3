"""Devices whose programs become graphs: elsewhere PyTorch runs every operator."""

from __future__ import annotations

import importlib.util

import torch


def _devices() -> tuple[str, ...]:
    """The CPU, and NVIDIA's GPUs where Triton, which generates for them, is installed."""
    nvidia = torch.version.hip is None and importlib.util.find_spec("triton") is not None
    return ("cpu", "cuda") if nvidia else ("cpu",)


DEVICES = _devices()
