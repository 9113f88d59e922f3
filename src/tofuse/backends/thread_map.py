"""Call a function for many items, on several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def thread_map(function: Callable[[T], R], items: Sequence[T], threads: int) -> list[R]:
    """Return the results of a function for all items, in order; re-raise what it raises.

    This thread is one of the `threads`. `concurrent.futures` would refuse them once the main thread
    has ended, though others may run on.
    """
    results: dict[int, R] = {}
    errors: list[BaseException] = []
    numbers = iter(range(len(items)))

    def work() -> None:
        for k in numbers:  # a step of the iterator is one operation of the interpreter
            if errors:
                return
            try:
                results[k] = function(items[k])
            except BaseException as error:
                errors.append(error)

    others = [threading.Thread(target=work) for _ in range(min(threads, len(items)) - 1)]
    for thread in others:
        thread.start()
    work()
    for thread in others:
        thread.join()
    if errors:
        raise errors[0]
    return [results[k] for k in range(len(items))]
