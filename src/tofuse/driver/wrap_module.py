"""Modules that share all state with another one, but run compiled code."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Mapping, MutableMapping
from typing import ParamSpec, TypeVar

import torch
from torch.nn.parallel import DistributedDataParallel

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=torch.nn.Module)


def share_state(module: M, call: Callable[..., object]) -> M:
    """A module that is the given one in everything, but calls `call`."""
    return _with_members(module, {"_compiled_call_impl": staticmethod(call)})


def wrap_distributed(
    module: DistributedDataParallel, inner: Callable[..., object]
) -> torch.nn.Module:
    """The module around a compiled one: what gets its gradients ready to be shared, at every call,
    stays Python."""

    def run(self: DistributedDataParallel, *inputs: object, **kwargs: object) -> object:
        with self._inside_ddp_forward():
            return inner(*inputs, **kwargs)

    return _with_members(module, {"_run_ddp_forward": run})


def _with_members(module: M, members: Mapping[str, object]) -> M:
    """A module that is the given one in everything, but for these members of its class.

    The two share one `__dict__`: parameters, mode, hooks, whatever is set later. Copying or
    pickling the twin copies the original.
    """
    kind = type(module)

    def fill(body: MutableMapping[str, object]) -> None:
        body["__module__"], body["__qualname__"] = kind.__module__, kind.__qualname__
        body["__doc__"] = kind.__doc__
        body["__reduce_ex__"] = lambda self, protocol: (copy.copy, (module,))
        body.update(members)

    twin: M = object.__new__(types.new_class(kind.__name__, (kind,), {}, fill))
    twin.__dict__ = module.__dict__
    return twin
