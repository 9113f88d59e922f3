"""PyTorch's operators: their types, schemas and decompositions."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType

from torch import _C, FunctionSchema, library
from torch._decomp import decomposition_table
from torch._ops import OpOverload, OpOverloadPacket

__all__ = [
    "BUILTIN_MODULES",
    "BUILTIN_NN",
    "FunctionSchema",
    "OpOverload",
    "OpOverloadPacket",
    "decomposition_table",
    "has_cpu_kernel",
    "library",
    "replaced_kernels",
    "schema_of",
    "without_python",
]

BUILTIN_NN: ModuleType = import_module("torch._C._nn")
BUILTIN_MODULES: tuple[ModuleType, ...] = (  # of functions that programs call
    _C,
    BUILTIN_NN,
    *(import_module(f"torch._C._{name}") for name in ("linalg", "special", "fft")),
)


def schema_of(operator: OpOverload) -> FunctionSchema:
    """Return the arguments and results that an operator declares."""
    return operator._schema


def without_python(operator: OpOverload) -> Callable[..., object]:
    """Return the operator without its Python wrapper, which takes 1 us a call."""
    return operator._op


def has_cpu_kernel(name: str) -> bool:
    """Return whether an operator such as `aten::mm.out` has a kernel of its own for the CPU."""
    return _C._dispatch_has_kernel_for_dispatch_key(name, "CPU")


def replaced_kernels() -> list[str]:
    """Return `aten/name/key` for each kernel of PyTorch that this process has replaced."""
    return list(library._impls)
