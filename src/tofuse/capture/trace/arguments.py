"""The arguments of a call: its distinct tensors, and a signature of all the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from enum import Enum

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from tofuse.capture.trace.pytree import flatten

Signature = tuple[object, ...]
Keywords = Mapping[str, object]
SIMPLE = frozenset((bool, int, str, type(None), torch.dtype, torch.device))


@dataclass(frozen=True)
class Call:
    """Arguments taken apart. `plain`: distinct tensors by position, and nothing else."""

    tensors: tuple[torch.Tensor, ...]
    places: tuple[int, ...]  # of each leaf among the tensors; -1 for what is no tensor
    leaves: tuple[object, ...]
    spec: TreeSpec
    plain: bool

    def rebuild(self, tensors: Sequence[torch.Tensor]) -> tuple[tuple[object, ...], Keywords]:
        """Arguments and keyword arguments, with these tensors."""
        pairs = zip(self.places, self.leaves, strict=True)
        args, kwargs = tree_unflatten([x if k < 0 else tensors[k] for k, x in pairs], self.spec)
        return args, kwargs

    def form(self) -> Call:
        """The same without its tensors, which live no longer for it."""
        pairs = zip(self.places, self.leaves, strict=True)
        return replace(self, tensors=(), leaves=tuple(x if k < 0 else None for k, x in pairs))


def take_apart(args: tuple[object, ...], kwargs: Keywords) -> Call:
    """The distinct tensors of a call in order, and where they stood."""
    leaves, spec = flatten((args, dict(kwargs)))
    tensors, places = _distinct(leaves)
    plain = not kwargs and len(tensors) == len(args) == len(leaves)
    return Call(tuple(tensors), tuple(places), tuple(leaves), spec, plain)


def signature_of(
    args: tuple[object, ...], kwargs: Keywords
) -> tuple[Signature, list[torch.Tensor]]:
    """Everything about a call but its distinct tensors, to compare by; and these.

    Numbers count with their type and sign; of lists, dicts and objects, what is in them.
    """
    leaves: list[object] = []
    spec: object = tuple([_nesting(x, leaves) for x in (*args, *kwargs.values())])
    for x in leaves:
        if not isinstance(x, (torch.Tensor, float)) and type(x) not in SIMPLE:
            leaves, spec = flatten((args, dict(kwargs)))
            break
    tensors, places = _distinct(leaves)
    rest = [_key(x) for x, k in zip(leaves, places, strict=True) if k < 0]
    return (len(args), tuple(kwargs), spec, tuple(places), tuple(rest)), tensors


def _nesting(x: object, leaves: list[object]) -> object:
    """How lists, tuples and dicts lie in one another, as pytree says; what is in them is added."""
    if isinstance(x, torch.Tensor):
        leaves.append(x)
        return None
    kind = type(x)
    if kind is list or kind is tuple:
        assert isinstance(x, (list, tuple))
        return (kind, *[_nesting(v, leaves) for v in x])
    if kind is dict:
        assert isinstance(x, dict)
        return (kind, *x, *[_nesting(v, leaves) for v in x.values()])
    leaves.append(x)
    return None


def _distinct(leaves: Sequence[object]) -> tuple[list[torch.Tensor], list[int]]:
    order: dict[int, int] = {}
    tensors: list[torch.Tensor] = []
    places: list[int] = []
    for x in leaves:
        if not isinstance(x, torch.Tensor):
            places.append(-1)
            continue
        k = order.setdefault(id(x), len(tensors))
        if k == len(tensors):
            tensors.append(x)
        places.append(k)
    return tensors, places


def _key(x: object, outer: tuple[int, ...] = ()) -> object:
    """What a guard compares of something that is no tensor; `outer` are the objects it is in."""
    if type(x) in SIMPLE:
        return (type(x), x)
    if isinstance(x, (float, complex)):
        return (type(x), repr(x))  # -0.0 is not 0.0, and nan is nan
    if isinstance(x, set):
        return (type(x), frozenset(x))
    if _may_change(x) and id(x) not in outer:
        leaves, spec = tree_flatten(vars(x))
        held = tuple(_key(v, (*outer, id(x))) for v in leaves)
        return (type(x), None if is_dataclass(x) else id(x), spec, held)
    try:
        hash(x)
    except TypeError:
        return (type(x), id(x))
    return (type(x), x)


def _may_change(x: object) -> bool:
    """Whether it is an object of Python's that is compared by identity, or not at all."""
    kind = type(x)
    if kind.__new__ is not object.__new__ or isinstance(x, (torch.nn.Module, Enum)):
        return False
    return kind.__hash__ in (None, object.__hash__) and getattr(x, "__dict__", None) is not None
