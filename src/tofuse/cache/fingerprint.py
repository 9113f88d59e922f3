"""A text that is the same for two programs of Dynamo's only where they are the same program."""

from __future__ import annotations

import builtins
import importlib
import inspect
import math
import operator
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import (
    BuiltinFunctionType,
    FunctionType,
    MethodDescriptorType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)

import torch
import torch.nn.functional as F
from torch._functorch import predispatch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.fx.immutable_collections import immutable_list

from tofuse.capture.fx.node_tensors import held_tensors
from tofuse.config import PACKAGE
from tofuse.hints import KEY


class _Unknown(Exception):
    """Something that has no text, or whose text may stand for something else."""


def fingerprint(gm: GraphModule, inputs: Sequence[object]) -> tuple[str, ...] | None:
    """What a program computes and for which arguments, with all of PyTorch's state that matters.

    None where a part of it cannot be told by name: the user's functions, programs inside it,
    sizes that are symbols, hints, modes that see operators.
    """
    held = held_tensors(gm)
    try:
        given = [*held.values(), *inputs]
        known = (_known(t) for t in held.values())
        return (_state(), *_arguments(given), *known, *_nodes(gm, list(held)))
    except _Unknown:
        return None


def _nodes(gm: GraphModule, held: Sequence[str]) -> list[str]:
    """A line for each node: places stand for names, which are as they happen to be."""
    places: dict[Node, str] = {}
    lines: list[str] = []
    for k, node in enumerate(gm.graph.nodes):
        custom = node.meta.get("custom")
        if isinstance(custom, dict) and KEY in custom:
            raise _Unknown
        if node.op == "placeholder":
            places[node] = f"%{k}"
            value = node.meta.get("example_value")
            if type(value) not in (FakeTensor, torch.nn.Parameter):
                raise _Unknown
            lines.append(_known(value))
            continue
        if node.op == "get_attr" and node.target in held:
            places[node] = f"held {held.index(str(node.target))}"
            continue
        if node.op not in ("call_function", "call_method", "output"):
            raise _Unknown
        name = _function(node.target) if node.op == "call_function" else str(node.target)
        if node.op == "call_method" and not _is_method(node.target, node.args[0]):
            raise _Unknown
        lines.append(f"{node.op} {name} {_text(node.args, places)} {_text(node.kwargs, places)}")
        places[node] = f"%{k}"
    return lines


def _is_method(name: object, x: object) -> bool:
    """Whether it is PyTorch's own method of a tensor."""
    if not isinstance(x, Node) or not isinstance(name, str):
        return False
    found = getattr(torch.Tensor, name, None)
    own = found is not None and _is_theirs(found) and found.__name__ == name
    return own and type(x.meta.get("example_value")) in (FakeTensor, torch.nn.Parameter)


def _is_theirs(function: object) -> bool:
    """Whether its code is Python's, PyTorch's or ours, whatever name was given to it.

    Neither a user's function around one of theirs is, nor theirs around a user's.
    """
    if not isinstance(function, FunctionType):
        return isinstance(function, (BuiltinFunctionType, *DESCRIPTORS))
    inner = inspect.unwrap(function)
    return function.__code__.co_filename.startswith(THEIRS) and (
        inner is function or _is_theirs(inner)
    )


THEIRS = tuple(f"{Path(file).parent}/" for file in (torch.__file__, PACKAGE / "__init__.py"))
DESCRIPTORS = (MethodDescriptorType, WrapperDescriptorType, MethodWrapperType)


def _text(x: object, places: dict[Node, str]) -> str:
    """An argument of a call."""
    if isinstance(x, Node):
        return places[x]
    if isinstance(x, dict):
        return "{" + ", ".join(f"{k!r}: {_text(v, places)}" for k, v in x.items()) + "}"
    if isinstance(x, slice):
        return f"slice({', '.join(_text(v, places) for v in (x.start, x.stop, x.step))})"
    if isinstance(x, (list, tuple)) and type(x) in SEQUENCES:
        return f"{type(x).__name__}({', '.join(_text(v, places) for v in x)})"
    if isinstance(x, float):
        return x.hex()
    if x is None or x is ... or type(x) in PLAIN:
        return f"{type(x).__name__} {x!r}"
    raise _Unknown


SEQUENCES = (list, tuple, torch.Size, immutable_list)
PLAIN = (
    bool,
    int,
    str,
    complex,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)


def _function(target: object) -> str:
    """The name of a function of PyTorch's, of Python's or of ours, under which it is found."""
    if isinstance(target, torch._ops.OpOverload):
        if target.namespace in ("aten", "prims", "tofuse"):
            return str(target)
        raise _Unknown
    name = getattr(target, "__name__", None)
    if not isinstance(name, str) or not _is_theirs(target):
        raise _Unknown
    own = getattr(target, "__module__", None)
    known = sys.modules.get(own) if isinstance(own, str) and own.startswith("tofuse.") else None
    for module in (*MODULES, *([known] if known is not None else [])):
        if getattr(module, name, None) is target:
            return f"{module.__name__}.{name}"
    raise _Unknown


MODULES: tuple[ModuleType, ...] = (
    torch,
    F,
    operator,
    math,
    builtins,
    torch.functional,
    torch.special,
    torch.linalg,
    torch.fft,
    torch._C,  # which switches gradients
    torch.amp.autocast_mode,
    predispatch,  # vmap
    *(importlib.import_module(f"torch._C._{n}") for n in ("nn", "linalg", "special", "fft")),
)


def _arguments(given: Sequence[object]) -> list[str]:
    """How tensors lie, and which share memory; Dynamo's guards tell that later calls are alike."""
    places: dict[int, int] = {}
    lines: list[str] = []
    for k, value in enumerate(given):
        if type(value) not in (torch.Tensor, torch.nn.Parameter, FakeTensor):
            raise _Unknown
        assert isinstance(value, torch.Tensor)
        owner = places.setdefault(value.untyped_storage()._cdata, k)
        lines.append(f"{owner} {value.storage_offset()} {value.is_leaf}")
    return lines


def _known(value: torch.Tensor) -> str:
    """What Dynamo knows of a tensor: a plain one of known sizes."""
    strange = value.is_conj() or value.is_neg() or value.is_inference()
    if value.layout is not torch.strided or value.device.type != "cpu" or strange:
        raise _Unknown
    numbers = (*value.shape, *value.stride())
    if not all(type(n) is int for n in numbers):
        raise _Unknown
    return f"{value.dtype} {tuple(value.shape)} {value.stride()} {value.requires_grad}"


def _state() -> str:
    """All that PyTorch's tracing depends on beside the program."""
    if torch._C._len_torch_dispatch_stack() or torch._C._is_any_autocast_enabled():
        raise _Unknown
    replaced = (name.rpartition("/")[2] for name in torch.library._impls if name[:5] == "aten/")
    if any(key in KEYS or key.startswith("Composite") for key in replaced):
        raise _Unknown  # somebody has put an operator of PyTorch's in the place of another
    return repr([question() for question in STATE])


KEYS = (  # of kernels that tracing and running plain tensors on the CPU may come to
    "",
    "CPU",
    "Autograd",
    "AutogradCPU",
    "AutocastCPU",
    "ADInplaceOrView",
    "BackendSelect",
    "Functionalize",
    "PreDispatch",
    "Python",
)
STATE: tuple[Callable[[], object], ...] = (
    lambda: torch.__version__,
    torch.is_grad_enabled,
    torch.is_inference_mode_enabled,
    torch.get_default_dtype,
    torch.get_default_device,
    torch.are_deterministic_algorithms_enabled,
    torch.get_float32_matmul_precision,
    torch.get_num_threads,
    torch._C._get_mkldnn_enabled,
    torch._C._get_flash_sdp_enabled,
    torch._C._get_mem_efficient_sdp_enabled,
    torch._C._get_math_sdp_enabled,
    torch._C._get_cudnn_sdp_enabled,
    torch._C._get_sdp_priority_order,
    lambda: torch.get_autocast_dtype("cpu"),
    torch.is_autocast_cache_enabled,
    torch._functorch.config.get_hash,
)
