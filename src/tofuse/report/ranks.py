"""The process group of torch.distributed in which a report was made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Ranks:
    """The rank of this process in a group of `size` processes.

    `gather` returns the items of all ranks on rank 0, and none elsewhere; all must call it.
    """

    rank: int
    size: int
    gather: Callable[[object], Sequence[object]]


def _alone(item: object) -> list[object]:
    return [item]


ONE_RANK = Ranks(0, 1, _alone)
