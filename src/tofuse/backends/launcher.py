"""What loaded code is to those who call it, whatever its target."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

TimedCall = Callable[[], object]
Program = Callable[[list[object]], "list[Tensor]"]  # takes the flat arguments in a list


class KernelLauncher(Protocol):
    """A kernel that is called with the addresses of its buffers, then with its sizes.

    `host_seeds` are the positions of seeds that may be in CPU memory or in that of the device:
    then their address is negative.
    """

    @property
    def host_seeds(self) -> tuple[int, ...]: ...

    def __call__(self, *words: int) -> None: ...
