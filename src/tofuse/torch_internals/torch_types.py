"""Types of torch's interfaces for which torch has no public name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch.fx import GraphModule

CompiledFunction = Callable[..., object]  # what a backend returns to Dynamo
Backend = Callable[[GraphModule, Sequence[object]], CompiledFunction]
