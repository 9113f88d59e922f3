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

ORIGINAL = "_tofuse_original"  # the attribute of a compiled module's class
M = TypeVar("M", bound=torch.nn.Module)


@dataclass(frozen=True)
class Recompilation:
    """Compiles a copy of a compiled module; `recompile` is a function that pickles by its name."""

    recompile: Callable[[torch.nn.Module, Config], torch.nn.Module]
    config: Config


def share_state(module: M, call: Callable[..., object], recompilation: Recompilation) -> M:
    """Return a module that shares all state with `module` but runs `call`.

    The call is a property, which comes before what `module.compile()` has stored in the state.
    """

    def store(wrapper: torch.nn.Module, stored: object) -> None:
        wrapper.__dict__[COMPILED_CALL] = stored  # for the original

    return _with_members(module, {COMPILED_CALL: property(lambda self: call, store)}, recompilation)


def wrap_distributed(
    module: DistributedDataParallel, inner: Callable[..., object], recompilation: Recompilation
) -> torch.nn.Module:
    """Return a module that shares all state with `module` but runs `inner`, a compiled module.

    DistributedDataParallel prepares the gradient reduction at every call; that stays Python.
    """

    def run(self: DistributedDataParallel, *inputs: object, **kwargs: object) -> object:
        with inside_ddp_forward(self):
            return inner(*inputs, **kwargs)

    return _with_members(module, {DDP_FORWARD: run}, recompilation)


def _with_members(module: M, members: Mapping[str, object], recompilation: Recompilation) -> M:
    """Return a module that shares all state with `module`; `members` override its class.

    Both modules share one `__dict__`, and so parameters, mode, hooks, and all later changes. They
    are equal, so that state keyed by one, such as FSDP's, is found for the other. A copied or
    unpickled result is a compiled copy of the original.
    """
    cls = type(module)

    def fill(body: MutableMapping[str, object]) -> None:
        body["__module__"], body["__qualname__"] = cls.__module__, cls.__qualname__
        body["__doc__"] = cls.__doc__
        body["__hash__"] = lambda self: hash(module)
        body[ORIGINAL] = module
        body["__eq__"] = lambda self, other: module == getattr(type(other), ORIGINAL, other)
        body["__reduce_ex__"] = lambda self, protocol: (_compiled_copy, (module, recompilation))
        body.update(members)

    wrapper: M = object.__new__(types.new_class(cls.__name__, (cls,), {}, fill))
    wrapper.__dict__ = module.__dict__
    return wrapper


def _compiled_copy(module: torch.nn.Module, recompilation: Recompilation) -> torch.nn.Module:
    return recompilation.recompile(copy.copy(module), recompilation.config)
