"""The results of a recorded CUDA graph: described once, and made again for each replay.

A description keeps no argument alive. Results that share memory are views of one another, as in a
call of the plan, so that autograd notices writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Union

import torch

from tofuse.errors import TofuseError
from tofuse.torch_internals.memory import reinterpret_tensor
from tofuse.torch_internals.storage_owners import StorageOwners


@dataclass(frozen=True, eq=False)
class Memory:
    """A tensor in the memory of the graph; or a value that is no tensor."""

    value: object


@dataclass(frozen=True)
class Argument:
    """The argument at a position."""

    position: int


@dataclass(frozen=True)
class Repeated:
    """The same tensor as an earlier result."""

    number: int


@dataclass(frozen=True)
class View:
    """A view of an argument or of an earlier result, which begins `offset` elements after it."""

    source: Argument | Repeated
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


GraphResult = Union[Memory, Argument, Repeated, View]  # noqa: UP007  (evaluated at run time)


def describe_results(results: Sequence[object], arguments: Sequence[object]) -> list[GraphResult]:
    """Return descriptions of the results of a call; raise TofuseError for views in other dtypes."""
    sources: list[tuple[torch.Tensor, Argument | Repeated]] = [
        (t, Argument(k)) for k, t in enumerate(arguments) if isinstance(t, torch.Tensor)
    ]
    found: list[GraphResult] = []
    for number, t in enumerate(results):
        if not isinstance(t, torch.Tensor):
            found.append(Memory(t))
            continue
        same = next((source for other, source in sources if other is t), None)
        found.append(same or _describe(t, sources))
        if same is None:
            sources.append((t, Repeated(number)))
    return found


def _describe(
    t: torch.Tensor, sources: Sequence[tuple[torch.Tensor, Argument | Repeated]]
) -> GraphResult:
    address = t.untyped_storage().data_ptr()
    for other, source in sources:
        if not address or other.untyped_storage().data_ptr() != address:
            continue
        if other.dtype is not t.dtype:
            raise TofuseError("results of different dtypes share memory")
        offset = int(t.storage_offset()) - int(other.storage_offset())
        return View(source, tuple(t.shape), t.stride(), offset)
    return Memory(t)


def make_results(
    descriptions: Sequence[GraphResult], arguments: Sequence[object]
) -> list[torch.Tensor]:
    """Return the results of a replay."""
    made: list[object] = []

    def find(source: Argument | Repeated) -> object:
        if isinstance(source, Argument):
            return arguments[source.position]
        return made[source.number]

    for d in descriptions:
        match d:
            case Memory(torch.Tensor() as t):
                made.append(reinterpret_tensor(t, t.shape, t.stride(), 0))
            case Memory(value):
                made.append(value)
            case View(source, shape, strides, offset):
                base = find(source)
                assert isinstance(base, torch.Tensor)
                with torch.no_grad():
                    start = int(base.storage_offset()) + offset
                    made.append(base.as_strided(shape, strides, start).detach())
            case _:
                made.append(find(d))
    return made  # type: ignore[return-value]  # as the results of the plan


def result_owners(descriptions: Sequence[GraphResult]) -> list[StorageOwners]:
    """Return the owners of the memory of the results that the graph computes."""
    values = (d.value for d in descriptions if isinstance(d, Memory))
    return [StorageOwners(t) for t in values if isinstance(t, torch.Tensor) and t.numel()]
