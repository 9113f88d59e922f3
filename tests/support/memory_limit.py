"""A limit of the memory that this process may still take."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

BLOCK = 1 << 24


@contextmanager
def address_space(nbytes: int) -> Iterator[None]:
    """Let the process take at most so many more bytes; larger requests fail.

    What the heap has free is taken first, because a request that fits there needs nothing new.
    """
    before = resource.getrlimit(resource.RLIMIT_AS)
    taken: list[torch.Tensor] = []
    try:
        resource.setrlimit(resource.RLIMIT_AS, (_used(), before[1]))
        taken.extend(_free_blocks())
        resource.setrlimit(resource.RLIMIT_AS, (_used() + nbytes, before[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        taken.clear()


def _used() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def _free_blocks() -> Iterator[torch.Tensor]:
    """Yield large blocks until the process would need new memory."""
    with suppress(RuntimeError):
        while True:
            yield torch.empty(BLOCK, dtype=torch.uint8)
