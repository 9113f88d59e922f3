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
    console = Console(stderr=True)
    # without a thread of its own, which would run beside what is timed
    with Progress(
        console=console, transient=True, auto_refresh=False, redirect_stdout=False
    ) as bar:
        task = bar.add_task(description, total=total)
        bar.refresh()
        for item in items:
            yield item
            bar.update(task, advance=1, refresh=True)
