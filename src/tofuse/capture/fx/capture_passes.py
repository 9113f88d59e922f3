"""The passes over FX graphs, as capture receives them from the driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch.fx import GraphModule

# Dynamo's program -> the program, the same or another one, and notes for the report.
PreAutogradPass = Callable[[GraphModule], tuple[GraphModule, tuple[str, ...]]]
FxPass = Callable[[GraphModule], GraphModule]


@dataclass(frozen=True)
class CapturePasses:
    """Passes by phase, each in order.

    `pre_autograd` run on Dynamo's program. `traced(num_fwd_outputs)` run on the joint graph, or on
    an inference graph, for which the number is None. `joint` run on the joint graph after them.
    """

    pre_autograd: Sequence[PreAutogradPass]
    traced: Callable[[int | None], Sequence[FxPass]]
    joint: Sequence[FxPass]
