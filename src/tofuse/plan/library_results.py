"""Facts about library calls that decide where the plan may put their results."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OutVariant:
    """The overload that writes into given tensors, and the names of its out arguments."""

    target: str
    names: tuple[str, ...]
