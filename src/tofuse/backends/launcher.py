"""What a loaded kernel is to the runtime, whatever its target."""

from __future__ import annotations

from typing import Protocol


class KernelLauncher(Protocol):
    """A kernel that is called with the addresses of its buffers, then with its sizes.

    `host_seeds` are the positions of seeds that may be in CPU memory or in that of the device:
    then their address is negative.
    """

    @property
    def host_seeds(self) -> tuple[int, ...]: ...

    def __call__(self, *words: int) -> None: ...
