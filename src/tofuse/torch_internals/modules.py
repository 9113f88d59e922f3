"""Attributes of `torch.nn.Module` without a public name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from operator import attrgetter
from types import MethodType

import torch
from torch.nn.parallel import DistributedDataParallel

from tofuse.torch_internals.dispatch import KEEPING
from tofuse.torch_internals.private_names import TRACING, always, has_attribute, private

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
for _name in ("_modules", "_parameters", "_buffers", *_HOOKS):
    has_attribute(torch.nn.Module(), _name, TRACING)


# The attribute of a module's class that a call runs if it is not None.
COMPILED_CALL = (
    "_compiled_call_impl"
    if has_attribute(torch.nn.Module(), "_compiled_call_impl", "a call takes longer to trace")
    else "__call__"
)
# Whether hooks are registered for all modules; Dynamo does not guard on them.
has_global_hooks: Callable[[], bool] = private(
    "torch.nn.modules.module", "_has_any_global_hook", KEEPING, always(True)
)
DDP_FORWARD = "_run_ddp_forward"  # the method that calls the module inside
_DDP = "PyTorch runs modules in DistributedDataParallel"
_ddp_methods: list[object] = [
    private("torch.nn.parallel", f"DistributedDataParallel.{name}", _DDP, None)
    for name in (DDP_FORWARD, "_inside_ddp_forward")
]
CAN_WRAP_DDP = None not in _ddp_methods


def inside_ddp_forward(module: DistributedDataParallel) -> AbstractContextManager[object]:
    """Return the context in which DistributedDataParallel calls the module inside."""
    return module._inside_ddp_forward()


def _whole_call(module: torch.nn.Module) -> Callable[..., object]:
    return MethodType(type(module).__call__, module)


# What a call of a module runs: its hooks and its `forward`.
call_of: Callable[[torch.nn.Module], Callable[..., object]] = (
    attrgetter("_call_impl")
    if has_attribute(torch.nn.Module(), "_call_impl", "a call of a module takes longer")
    else _whole_call
)


def submodules(module: torch.nn.Module) -> Mapping[str, torch.nn.Module | None]:
    """Return a module's own table of submodules."""
    return module._modules


def tensor_tables(
    module: torch.nn.Module,
) -> tuple[dict[str, torch.nn.Parameter | None], dict[str, torch.Tensor | None]]:
    """Return a module's own tables of parameters and buffers."""
    return module._parameters, module._buffers


def hook_tables(module: torch.nn.Module) -> list[Mapping[int, object]]:
    """Return a module's tables of the hooks that run in a call, by key."""
    return [getattr(module, name) for name in _HOOKS]
