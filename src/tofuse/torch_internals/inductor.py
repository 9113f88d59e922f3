"""Inductor: the names of its options."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from tofuse.torch_internals.private_names import private


@cache
def inductor_options() -> frozenset[str]:
    """Return the names of Inductor's options; none if this torch does not list them."""
    listed: Callable[[], list[str]] = private("torch._inductor", "list_options", "", list)
    return frozenset(listed())
