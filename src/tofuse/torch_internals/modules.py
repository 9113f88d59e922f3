"""Attributes of `torch.nn.Module` without a public name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch


def call_of(module: torch.nn.Module) -> Callable[..., object]:
    """Return what a call of the module runs: its hooks and its `forward`."""
    return module._call_impl


def submodules(module: torch.nn.Module) -> Mapping[str, torch.nn.Module | None]:
    """Return a module's own table of submodules."""
    return module._modules


def tensor_tables(
    module: torch.nn.Module,
) -> tuple[dict[str, torch.nn.Parameter | None], dict[str, torch.Tensor | None]]:
    """Return a module's own tables of parameters and buffers."""
    return module._parameters, module._buffers


def hook_tables(module: torch.nn.Module) -> tuple[Mapping[int, object], ...]:
    """Return a module's tables of the hooks that run in a call, by key."""
    before, after = module._forward_pre_hooks, module._forward_hooks
    return (before, after, module._backward_pre_hooks, module._backward_hooks)
