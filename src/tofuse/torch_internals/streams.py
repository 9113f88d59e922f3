"""The device and the stream on which CUDA runs."""

from __future__ import annotations

import torch

from tofuse.torch_internals.private_names import private

LAUNCHES = "a launch on a GPU takes a few us more"


def _get_stream(device: int) -> int:
    return torch.cuda.current_stream(device).cuda_stream


get_device, get_stream = torch.cuda.current_device, _get_stream
if torch.backends.cuda.is_built():
    get_device = private("torch._C", "_cuda_getDevice", LAUNCHES, get_device)
    get_stream = private("torch._C", "_cuda_getCurrentRawStream", LAUNCHES, _get_stream)
