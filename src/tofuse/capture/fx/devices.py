"""The device types that tofuse compiles for; on others PyTorch runs every operator."""

from __future__ import annotations

import importlib.util

import torch

_HAS_TRITON = torch.version.hip is None and importlib.util.find_spec("triton") is not None
SUPPORTED_DEVICES = ("cpu", "cuda") if _HAS_TRITON else ("cpu",)
