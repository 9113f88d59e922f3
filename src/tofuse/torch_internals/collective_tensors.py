"""The results of collectives that eager waits for where they are first read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tofuse.torch_internals.private_names import private, stand_in

if TYPE_CHECKING:
    from torch.distributed._functional_collectives import (
        AsyncCollectiveTensor as AsyncCollectiveTensor,
    )
else:
    AsyncCollectiveTensor = private(
        "torch.distributed._functional_collectives",
        "AsyncCollectiveTensor",
        "results of collectives that are arguments may lose their gradients",
        stand_in("AsyncCollectiveTensor"),
    )
