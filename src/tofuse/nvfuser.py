"""A drop-in replacement of nvFuser's Python module: `import tofuse.nvfuser as nvfuser`."""

from __future__ import annotations

from tofuse.frontends.datatypes import DataType, datatype
from tofuse.frontends.fusion_definition import Fusion, FusionDefinition
from tofuse.frontends.input_layouts import compute_tensor_descriptor
from tofuse.frontends.proxies import Scalar, Tensor, Vector

__all__ = [
    "DataType",
    "Fusion",
    "FusionDefinition",
    "Scalar",
    "Tensor",
    "Vector",
    "compute_tensor_descriptor",
    "torch_dtype_to_nvfuser_dtype",
]

torch_dtype_to_nvfuser_dtype = datatype
