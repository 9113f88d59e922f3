"""A progress bar on stderr, for a person at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import Progress

T = TypeVar("T")


def progress(items: Iterable[T], description: str, total: int) -> Iterator[T]:
    """Yield the items; show which share of `total` is done if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield from items
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        yield from bar.track(items, total=total, description=description)
