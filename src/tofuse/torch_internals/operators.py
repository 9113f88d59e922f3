"""PyTorch's operators: their types, schemas, kernels and decompositions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import FunctionSchema

from tofuse.torch_internals.private_names import (
    EVERYTHING,
    always,
    has_attribute,
    itself,
    lacking,
    private,
)

if TYPE_CHECKING:
    from torch._ops import OpOverload as OpOverload
    from torch._ops import OpOverloadPacket as OpOverloadPacket
else:
    OpOverload = type(torch.ops.aten.add.Tensor)
    OpOverloadPacket = type(torch.ops.aten.add)

KEEPING = "fewer programs are kept on disk"
MADE_ANYWHERE = "results of library calls do not use pooled memory"
_ADD: OpOverload = torch.ops.aten.add.Tensor


def _module(name: str) -> ModuleType:
    return private("torch._C", name, KEEPING, torch)


decomposition_table: Mapping[OpOverload, Callable[..., torch.Tensor]] = private(
    "torch._decomp",
    "decomposition_table",
    EVERYTHING,
    defaultdict(lambda: lacking),
)
_has_schema = has_attribute(_ADD, "_schema", EVERYTHING)
schema_of: Callable[[OpOverload], FunctionSchema] = attrgetter("_schema")

# The operator without its Python wrapper, which takes 1 us a call.
without_python: Callable[[OpOverload], Callable[..., object]] = (
    attrgetter("_op") if has_attribute(_ADD, "_op", "a library call takes 1 us more") else itself
)
_has_kernel: Callable[[str, str], bool] = private(
    "torch._C", "_dispatch_has_kernel_for_dispatch_key", MADE_ANYWHERE, always(False)
)
# `aten/name/key` for each kernel of PyTorch that this process has replaced; grows.
replaced_kernels: Iterable[str] = private("torch.library", "_impls", KEEPING, ("aten//CPU",))

BUILTIN_NN = _module("_nn")
BUILTIN_MODULES: tuple[ModuleType, ...] = (  # of functions that programs call
    torch._C,
    BUILTIN_NN,
    *map(_module, ("_linalg", "_special", "_fft")),
)


def is_composite(op: OpOverload) -> bool:
    """Return whether an operator consists of others, so that autograd sees these only."""
    return _has_kernel(op.name(), "CompositeImplicitAutograd")


def has_cpu_kernel(name: str) -> bool:
    """Return whether an operator such as `aten::mm.out` has a kernel of its own for the CPU."""
    return _has_kernel(name, "CPU")
