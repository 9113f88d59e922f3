"""Arguments and results as flat lists: what pytree knows, and dataclasses that hold tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass

import torch
from torch.utils._pytree import (
    TreeSpec,
    register_pytree_node,
    tree_flatten,
    tree_leaves,
    tree_map,
)

_UNSET = object()  # the place of a field that has no value

Outer = tuple[int, ...]  # the objects that something is in


@dataclass(frozen=True)
class _Open:
    """A dataclass whose fields pytree shall see."""

    held: object
    outer: Outer


def flatten(tree: object) -> tuple[list[object], TreeSpec]:
    """The leaves of a tree, and what `tree_unflatten` makes another like it of."""
    leaves, spec = tree_flatten(tree, is_leaf=is_size)
    if not any(map(holds_tensors, leaves)):
        return leaves, spec
    return tree_flatten(_opened(tree), is_leaf=is_size)


def is_size(x: object) -> bool:
    """A tree of numbers to pytree, which puts it together as a tuple; we take it whole."""
    return isinstance(x, torch.Size)


def holds_tensors(x: object, outer: Outer = ()) -> bool:
    """Whether it is a dataclass with a tensor in it, and none that it is in itself."""
    if not is_dataclass(x) or isinstance(x, (type, torch.nn.Module)) or id(x) in outer:
        return False
    if type(x).__new__ is not object.__new__:  # a dict, for instance, which has more than fields
        return False
    inside = tree_leaves(held_by(x), is_leaf=is_size)
    return any(isinstance(v, torch.Tensor) or holds_tensors(v, (*outer, id(x))) for v in inside)


def records(tree: object, outer: Outer = ()) -> Iterator[object]:
    """The dataclasses of a tree that hold tensors, and those inside of them."""
    for x in tree_leaves(tree, is_leaf=is_size):
        if holds_tensors(x, outer):
            yield x
            yield from records(held_by(x), (*outer, id(x)))


def held_by(x: object) -> Mapping[str, object]:
    """What is set in it by name; where it has slots, in its fields."""
    held = getattr(x, "__dict__", None)
    if held is not None:
        return dict(held)
    assert is_dataclass(x)
    found = {f.name: getattr(x, f.name, _UNSET) for f in fields(x)}
    return {name: v for name, v in found.items() if v is not _UNSET}


def _opened(tree: object, outer: Outer = ()) -> object:
    def opened(x: object) -> object:
        return _Open(x, outer) if holds_tensors(x, outer) else x

    return tree_map(opened, tree, is_leaf=is_size)


def _take_apart(opened: _Open) -> tuple[list[object], tuple[type, tuple[str, ...]]]:
    held, outer = held_by(opened.held), (*opened.outer, id(opened.held))
    return [_opened(v, outer) for v in held.values()], (type(opened.held), tuple(held))


def _put_together(values: object, known: tuple[type, tuple[str, ...]]) -> object:
    """One like that which was taken apart, frozen or not: its `__init__` does not run again."""
    kind, names = known
    made: object = object.__new__(kind)
    assert isinstance(values, (list, tuple))
    for name, value in zip(names, values, strict=True):
        object.__setattr__(made, name, value)
    return made


register_pytree_node(_Open, _take_apart, _put_together)
