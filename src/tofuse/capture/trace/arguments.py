"""The arguments of a call: its distinct tensors, and a signature of everything else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from enum import Enum

import torch

from tofuse.capture.trace.pytree import flatten
from tofuse.torch_internals.trees import TreeSpec, tree_flatten, tree_unflatten

Signature = tuple[object, ...]
Keywords = Mapping[str, object]
SIMPLE_TYPES = frozenset((bool, int, str, type(None), torch.dtype, torch.device))


@dataclass(frozen=True)
class CallArguments:
    """The flattened arguments of a call.

    `tensor_index` has, for each leaf, its index among the distinct `tensors`, or -1 for other
    leaves. Of `leaves`, tensors are None, so that these keep no tensor alive. `only_tensors`: the
    arguments are distinct tensors by position.
    """

    tensors: tuple[torch.Tensor, ...]
    tensor_index: tuple[int, ...]
    leaves: tuple[object, ...]
    spec: TreeSpec
    only_tensors: bool

    def rebuild(self, tensors: Sequence[torch.Tensor]) -> tuple[tuple[object, ...], Keywords]:
        """Return the positional and keyword arguments, with these tensors."""
        pairs = zip(self.tensor_index, self.leaves, strict=True)
        args, kwargs = tree_unflatten([x if k < 0 else tensors[k] for k, x in pairs], self.spec)
        return args, kwargs


def flatten_call(args: tuple[object, ...], kwargs: Keywords) -> CallArguments:
    """Return the flattened arguments of a call."""
    leaves, spec = flatten((args, dict(kwargs)))
    tensors, tensor_index = _distinct_tensors(leaves)
    only_tensors = not kwargs and len(tensors) == len(args) == len(leaves)
    others = tuple(x if k < 0 else None for k, x in zip(tensor_index, leaves, strict=True))
    return CallArguments(tuple(tensors), tuple(tensor_index), others, spec, only_tensors)


def signature_of(
    args: tuple[object, ...], kwargs: Keywords
) -> tuple[Signature, list[torch.Tensor]]:
    """Return a key of everything in a call except its distinct tensors, and these tensors.

    The key has numbers with their type and sign, and the contents of lists, dicts and objects.
    """
    leaves: list[object] = []
    spec: object = tuple([_structure(x, leaves) for x in (*args, *kwargs.values())])
    for x in leaves:
        if not isinstance(x, (torch.Tensor, float)) and type(x) not in SIMPLE_TYPES:
            leaves, spec = flatten((args, dict(kwargs)))
            break
    tensors, tensor_index = _distinct_tensors(leaves)
    others = [_guard_key(x) for x, k in zip(leaves, tensor_index, strict=True) if k < 0]
    return (len(args), tuple(kwargs), spec, tuple(tensor_index), tuple(others)), tensors


def _structure(x: object, leaves: list[object]) -> object:
    """Return the nesting of lists, tuples and dicts, as pytree's spec; append the leaves.

    A key of two tensors takes 2 us. With pytree's flatten and spec it takes 9 us.
    """
    if isinstance(x, torch.Tensor):
        leaves.append(x)
        return None
    kind = type(x)
    if kind is list or kind is tuple:
        assert isinstance(x, (list, tuple))
        return (kind, *[_structure(v, leaves) for v in x])
    if kind is dict:
        assert isinstance(x, dict)
        return (kind, *x, *[_structure(v, leaves) for v in x.values()])
    leaves.append(x)
    return None


def _distinct_tensors(leaves: Sequence[object]) -> tuple[list[torch.Tensor], list[int]]:
    """Return the distinct tensors, and the index among them for each leaf (-1: no tensor)."""
    index_by_id: dict[int, int] = {}
    tensors: list[torch.Tensor] = []
    tensor_index: list[int] = []
    for x in leaves:
        if not isinstance(x, torch.Tensor):
            tensor_index.append(-1)
            continue
        k = index_by_id.setdefault(id(x), len(tensors))
        if k == len(tensors):
            tensors.append(x)
        tensor_index.append(k)
    return tensors, tensor_index


def _guard_key(x: object, ancestors: tuple[int, ...] = ()) -> object:
    """Return what a guard compares for an object; `ancestors` are the ids of objects around it."""
    if type(x) in SIMPLE_TYPES:
        return (type(x), x)
    if isinstance(x, (float, complex)):
        return (type(x), repr(x))  # -0.0 differs from 0.0, and nan equals nan
    if isinstance(x, set):
        return (type(x), frozenset(x))
    if _is_mutable_object(x) and id(x) not in ancestors:
        leaves, spec = tree_flatten(vars(x))
        contents = tuple(_guard_key(v, (*ancestors, id(x))) for v in leaves)
        return (type(x), None if is_dataclass(x) else id(x), spec, contents)
    try:
        hash(x)
    except TypeError:
        return (type(x), id(x))
    return (type(x), x)


def _is_mutable_object(x: object) -> bool:
    """Return whether it is a Python object compared by identity, or not hashable."""
    kind = type(x)
    if kind.__new__ is not object.__new__ or isinstance(x, (torch.nn.Module, Enum)):
        return False
    return kind.__hash__ in (None, object.__hash__) and getattr(x, "__dict__", None) is not None
