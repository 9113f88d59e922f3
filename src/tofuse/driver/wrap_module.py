"""Wrap modules: the result shares all state with the module, but runs compiled code."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch.nn.parallel import DistributedDataParallel

from tofuse.config import Config
from tofuse.torch_internals.modules import COMPILED_CALL, DDP_FORWARD, inside_ddp_forward

M = TypeVar("M", bound=torch.nn.Module)


@dataclass(frozen=True)
class Compilation:
    """How a copy of a compiled module is compiled: by a function of a module's namespace."""

    recompile: Callable[[torch.nn.Module, Config], torch.nn.Module]
    config: Config


def share_state(module: M, call: Callable[..., object], compilation: Compilation) -> M:
    """Return a module that shares all state with `module` but runs `call`.

    The call is a property, which comes before what `module.compile()` has stored in the state.
    """

    def store(wrapper: torch.nn.Module, stored: object) -> None:
        wrapper.__dict__[COMPILED_CALL] = stored  # for the original

    return _with_members(module, {COMPILED_CALL: property(lambda self: call, store)}, compilation)


def wrap_distributed(
    module: DistributedDataParallel, inner: Callable[..., object], compilation: Compilation
) -> torch.nn.Module:
    """Return a module that shares all state with `module` but runs `inner`, a compiled module.

    DistributedDataParallel prepares the gradient reduction at every call; that stays Python.
    """

    def run(self: DistributedDataParallel, *inputs: object, **kwargs: object) -> object:
        with inside_ddp_forward(self):
            return inner(*inputs, **kwargs)

    return _with_members(module, {DDP_FORWARD: run}, compilation)


def _with_members(module: M, members: Mapping[str, object], compilation: Compilation) -> M:
    """Return a module that shares all state with `module`; `members` override its class.

    Both modules share one `__dict__`, and so parameters, mode, hooks, and all later changes. They
    are equal, so that what others keep for one, as FSDP does, is found for the other. A copy of the
    result, or what it is pickled to, is a compiled copy of the original.
    """
    cls = type(module)

    def fill(body: MutableMapping[str, object]) -> None:
        body["__module__"], body["__qualname__"] = cls.__module__, cls.__qualname__
        body["__doc__"] = cls.__doc__
        body["__hash__"] = lambda self: hash(module)
        body["__eq__"] = lambda self, other: module is other or cls.__eq__(self, other)
        body["__reduce_ex__"] = lambda self, protocol: (_compiled_copy, (module, compilation))
        body.update(members)

    wrapper: M = object.__new__(types.new_class(cls.__name__, (cls,), {}, fill))
    wrapper.__dict__ = module.__dict__
    return wrapper


def _compiled_copy(module: torch.nn.Module, compilation: Compilation) -> torch.nn.Module:
    return compilation.recompile(copy.copy(module), compilation.config)
