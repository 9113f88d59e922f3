"""Pytrees of arguments and results, extended by dataclasses that hold tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass

import torch

from tofuse.torch_internals.trees import (
    TreeSpec,
    register_pytree_node,
    tree_flatten,
    tree_leaves,
    tree_map,
)

_UNSET = object()  # the value of a field that is not set

Ancestors = tuple[int, ...]  # the ids of the dataclasses around an object


@dataclass(frozen=True)
class _PytreeDataclass:
    """A wrapper by which pytree descends into the fields of a dataclass."""

    value: object
    ancestors: Ancestors


def flatten(tree: object) -> tuple[list[object], TreeSpec]:
    """Return the leaves of a tree, and the spec from which `tree_unflatten` rebuilds it."""
    leaves, spec = tree_flatten(tree, is_leaf=is_size)
    if not any(map(is_tensor_dataclass, leaves)):
        return leaves, spec
    return tree_flatten(_wrap_dataclasses(tree), is_leaf=is_size)


def is_size(x: object) -> bool:
    """Return whether it is a torch.Size: a leaf, because pytree would rebuild it as a tuple."""
    return isinstance(x, torch.Size)


def is_tensor_dataclass(x: object, ancestors: Ancestors = ()) -> bool:
    """Return whether it is a dataclass that holds a tensor and is not inside itself."""
    if not is_dataclass(x) or isinstance(x, (type, torch.nn.Module)) or id(x) in ancestors:
        return False
    if type(x).__new__ is not object.__new__:  # such as a dict, which holds more than fields
        return False
    inside = tree_leaves(field_values(x), is_leaf=is_size)
    path = (*ancestors, id(x))
    return any(isinstance(v, torch.Tensor) or is_tensor_dataclass(v, path) for v in inside)


def tensor_dataclasses(tree: object, ancestors: Ancestors = ()) -> Iterator[object]:
    """Yield the dataclasses of a tree that hold tensors, and those inside them."""
    for x in tree_leaves(tree, is_leaf=is_size):
        if is_tensor_dataclass(x, ancestors):
            yield x
            yield from tensor_dataclasses(field_values(x), (*ancestors, id(x)))


def field_values(x: object) -> Mapping[str, object]:
    """Return the attributes of a dataclass by name; if it has slots, its fields."""
    attributes = getattr(x, "__dict__", None)
    if attributes is not None:
        return dict(attributes)
    assert is_dataclass(x)
    values = {f.name: getattr(x, f.name, _UNSET) for f in fields(x)}
    return {name: v for name, v in values.items() if v is not _UNSET}


def _wrap_dataclasses(tree: object, ancestors: Ancestors = ()) -> object:
    def wrapped(x: object) -> object:
        return _PytreeDataclass(x, ancestors) if is_tensor_dataclass(x, ancestors) else x

    return tree_map(wrapped, tree, is_leaf=is_size)


def _flatten_dataclass(
    wrapper: _PytreeDataclass,
) -> tuple[list[object], tuple[type, tuple[str, ...]]]:
    attributes = field_values(wrapper.value)
    ancestors = (*wrapper.ancestors, id(wrapper.value))
    values = [_wrap_dataclasses(v, ancestors) for v in attributes.values()]
    return values, (type(wrapper.value), tuple(attributes))


def _unflatten_dataclass(values: object, context: tuple[type, tuple[str, ...]]) -> object:
    """Return a dataclass with these values, frozen or not, without a call of `__init__`."""
    cls, names = context
    result: object = object.__new__(cls)
    assert isinstance(values, (list, tuple))
    for name, value in zip(names, values, strict=True):
        object.__setattr__(result, name, value)
    return result


register_pytree_node(_PytreeDataclass, _flatten_dataclass, _unflatten_dataclass)
