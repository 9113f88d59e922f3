"""Fingerprint of a Dynamo program: two programs with the same fingerprint are equal."""

from __future__ import annotations

import builtins
import hashlib
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
from torch.fx import GraphModule, Node
from torch.fx.immutable_collections import immutable_list

from tofuse.capture.dynamo.dependencies import dependencies
from tofuse.capture.fx.node_tensors import module_tensors
from tofuse.config import PACKAGE
from tofuse.errors import UnsupportedError
from tofuse.hints import HINT_KEY
from tofuse.torch_internals.dispatch import LIBRARY_SWITCHES, autocast_on, dispatch_modes
from tofuse.torch_internals.fake_tensors import FakeTensor
from tofuse.torch_internals.memory import storage_key
from tofuse.torch_internals.operators import BUILTIN_MODULES, OpOverload, replaced_kernels
from tofuse.torch_internals.size_guards import SizeGuards
from tofuse.torch_internals.transforms import vmap_functions


class _NotIdentifiable(Exception):
    """Raised for a part of a program that its text does not identify."""


def fingerprint(
    gm: GraphModule, inputs: Sequence[object], sizes: SizeGuards
) -> tuple[str, ...] | None:
    """Return the text of a program, its argument types and the relevant state of PyTorch.

    `sizes` are the symbolic ones. None if a part is not identified by its text: user functions,
    nested programs, sizes that depend on data, fusion hints, dispatch modes.
    """
    held = module_tensors(gm)
    try:
        tensors = [*held.values(), *inputs]
        held_texts = (_tensor_text(t, sizes) for t in held.values())
        lines = _node_lines(gm, list(held), sizes)
        called = _called_code(trusted_calls(gm) or (), gm)
        facts = sizes.facts
        if facts is None:
            return None
        return (torch_state(), called, *facts, *_argument_aliases(tensors), *held_texts, *lines)
    except (_NotIdentifiable, UnsupportedError):
        return None


def trusted_calls(gm: GraphModule) -> tuple[str, ...] | None:
    """Return the functions and methods that a program calls, by name; None if one has no name."""
    try:
        calls = {
            f"{n.op} {_function_name(n.target) if n.op == 'call_function' else n.target}"
            for n in gm.graph.nodes
            if n.op in ("call_function", "call_method") and not isinstance(n.target, OpOverload)
        }
    except (_NotIdentifiable, UnsupportedError):
        return None
    return tuple(sorted(calls))


def python_calls(calls: Sequence[str]) -> list[FunctionType]:
    """Return the Python functions among the calls of `trusted_calls`."""
    found: list[object] = []
    for kind, _, name in (call.partition(" ") for call in calls):
        module, _, attribute = name.rpartition(".")
        owner = torch.Tensor if kind == "call_method" else sys.modules[module]
        found.append(getattr(owner, attribute))
    return [f for f in found if isinstance(f, FunctionType)]


def _called_code(calls: Sequence[str], gm: GraphModule) -> str:
    """Return a digest of what tracing runs: attributes of tensors, and Python functions.

    Programs may replace them.
    """
    names = {call.partition(" ")[2] for call in calls if call.startswith("call_method")}
    reads = (n.args[1] for n in gm.graph.nodes if n.target is getattr)
    names.update(name for name in reads if isinstance(name, str))
    found = dependencies([torch.Tensor], (), python_calls(calls), names).digests
    return hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()


def is_unchanged(state: str, calls: Sequence[str]) -> bool:
    """Return whether torch's state is the same, and these names lead to PyTorch's functions."""
    try:
        return torch_state() == state and all(map(_is_trusted_call, calls))
    except (_NotIdentifiable, LookupError, AttributeError):
        return False


def _is_trusted_call(call: str) -> bool:
    kind, _, name = call.partition(" ")
    if kind == "call_method":
        method = getattr(torch.Tensor, name)
        return _is_trusted(method) and bool(method.__name__ == name)
    module, _, attribute = name.rpartition(".")
    return _function_name(getattr(sys.modules[module], attribute)) == name


def _node_lines(gm: GraphModule, held: Sequence[str], sizes: SizeGuards) -> list[str]:
    """Return a line for each node. Nodes are numbered, because their names are arbitrary."""
    labels: dict[Node, str] = {}
    lines: list[str] = []
    for k, node in enumerate(gm.graph.nodes):
        custom = node.meta.get("custom")
        if (isinstance(custom, dict) and HINT_KEY in custom) or node.meta.get("unbacked_bindings"):
            raise _NotIdentifiable
        if node.op == "placeholder":
            labels[node] = f"%{k}"
            value = node.meta.get("example_value")
            is_size = isinstance(value, torch.SymInt)
            lines.append(_size_text(value, sizes) if is_size else _tensor_text(value, sizes))
            continue
        if node.op == "get_attr" and node.target in held:
            labels[node] = f"held {held.index(str(node.target))}"
            continue
        if node.op not in ("call_function", "call_method", "output"):
            raise _NotIdentifiable
        name = _function_name(node.target) if node.op == "call_function" else str(node.target)
        if node.op == "call_method" and not _is_method(node.target, node.args[0]):
            raise _NotIdentifiable
        args, kwargs = _argument_text(node.args, labels), _argument_text(node.kwargs, labels)
        lines.append(f"{node.op} {name} {args} {kwargs}")
        labels[node] = f"%{k}"
    return lines


def _is_method(name: object, x: object) -> bool:
    """Whether `name` is PyTorch's method of the tensor `x`."""
    if not isinstance(x, Node) or not isinstance(name, str):
        return False
    method = getattr(torch.Tensor, name, None)
    trusted = method is not None and _is_trusted(method) and method.__name__ == name
    return trusted and type(x.meta.get("example_value")) in (FakeTensor, torch.nn.Parameter)


def _is_trusted(function: object) -> bool:
    """Whether a function's code belongs to Python, PyTorch or tofuse, whatever its name.

    False for a user's wrapper of such a function, and for a wrapper of a user's function.
    """
    if not isinstance(function, FunctionType):
        return isinstance(function, (BuiltinFunctionType, *DESCRIPTOR_TYPES))
    inner = inspect.unwrap(function)
    return function.__code__.co_filename.startswith(TRUSTED_FOLDERS) and (
        inner is function or _is_trusted(inner)
    )


TRUSTED_FOLDERS = tuple(
    f"{Path(file).parent}/" for file in (torch.__file__, PACKAGE / "__init__.py")
)
DESCRIPTOR_TYPES = (MethodDescriptorType, WrapperDescriptorType, MethodWrapperType)


def _argument_text(x: object, labels: dict[Node, str]) -> str:
    """Return the text of an argument of a call."""
    if isinstance(x, Node):
        return labels[x]
    if isinstance(x, dict):
        return "{" + ", ".join(f"{k!r}: {_argument_text(v, labels)}" for k, v in x.items()) + "}"
    if isinstance(x, slice):
        return f"slice({', '.join(_argument_text(v, labels) for v in (x.start, x.stop, x.step))})"
    if isinstance(x, (list, tuple)) and type(x) in SEQUENCE_TYPES:
        return f"{type(x).__name__}({', '.join(_argument_text(v, labels) for v in x)})"
    if isinstance(x, float):
        return x.hex()
    if x is None or x is ... or type(x) in LITERAL_TYPES:
        return f"{type(x).__name__} {x!r}"
    raise _NotIdentifiable


SEQUENCE_TYPES = (list, tuple, torch.Size, immutable_list)
LITERAL_TYPES = (
    bool,
    int,
    str,
    complex,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)


def _function_name(target: object) -> str:
    """Return the qualified name under which a function of Python, PyTorch or tofuse is found."""
    if isinstance(target, OpOverload):
        if target.namespace in ("aten", "prims", "tofuse"):
            return str(target)
        raise _NotIdentifiable
    name = getattr(target, "__name__", None)
    if not isinstance(name, str) or not _is_trusted(target):
        raise _NotIdentifiable
    module_name = getattr(target, "__module__", None)
    ours = isinstance(module_name, str) and module_name.startswith("tofuse.")
    our_module = sys.modules.get(str(module_name)) if ours else None
    for module in (*MODULES, *([our_module] if our_module is not None else [])):
        if getattr(module, name, None) is target:
            return f"{module.__name__}.{name}"
    raise _NotIdentifiable


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
    torch.amp.autocast_mode,
    vmap_functions,
    *BUILTIN_MODULES,
)


def _argument_aliases(tensors: Sequence[object]) -> list[str]:
    """Return a line per tensor: the first tensor with the same storage, its offset, is_leaf.

    Dynamo's guards ensure the same for later calls. Symbolic sizes among the arguments have none.
    """
    first_by_storage: dict[int, int] = {}
    lines: list[str] = []
    for k, value in enumerate(tensors):
        if isinstance(value, torch.SymInt):
            continue
        if type(value) not in PLAIN_TENSORS:
            raise _NotIdentifiable
        assert isinstance(value, torch.Tensor)
        first = first_by_storage.setdefault(storage_key(value.untyped_storage()), k)
        lines.append(f"{first} {value.storage_offset()} {value.is_leaf}")
    return lines


PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, FakeTensor)


def _tensor_text(value: object, sizes: SizeGuards) -> str:
    """Return the dtype, sizes, strides and requires_grad of a plain tensor."""
    if type(value) not in PLAIN_TENSORS:
        raise _NotIdentifiable
    assert isinstance(value, torch.Tensor)
    special = value.is_conj() or value.is_neg() or value.is_inference()
    if value.layout is not torch.strided or value.device.type != "cpu" or special:
        raise _NotIdentifiable
    numbers = (*value.shape, *value.stride(), value.storage_offset())
    layout = " ".join(_size_text(n, sizes) for n in numbers)
    return f"{value.dtype} {value.ndim} {layout} {value.requires_grad}"


def _size_text(size: object, sizes: SizeGuards) -> str:
    """Return a size, which may be symbolic, as text."""
    if not sizes.covers(size):
        raise _NotIdentifiable
    return f"{size}"


def torch_state() -> str:
    """Return the global state that tracing in PyTorch depends on."""
    if dispatch_modes() or autocast_on():
        raise _NotIdentifiable
    replaced = (name.rpartition("/")[2] for name in list(replaced_kernels) if name[:5] == "aten/")
    if any(key in CPU_DISPATCH_KEYS or key.startswith("Composite") for key in replaced):
        raise _NotIdentifiable  # an implementation of an ATen operator has been replaced
    return repr([query() for query in STATE_QUERIES])


CPU_DISPATCH_KEYS = (  # of kernels that tracing or running plain tensors on the CPU may call
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
STATE_QUERIES: tuple[Callable[[], object], ...] = (
    lambda: torch.__version__,
    torch.is_grad_enabled,
    torch.is_inference_mode_enabled,
    torch.get_default_dtype,
    torch.get_default_device,
    torch.are_deterministic_algorithms_enabled,
    torch.get_float32_matmul_precision,
    torch.get_num_threads,
    *LIBRARY_SWITCHES,
    lambda: torch.get_autocast_dtype("cpu"),
    torch.is_autocast_cache_enabled,
)
