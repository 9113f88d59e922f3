"""Types of torch's interfaces for which torch has no public name."""

from __future__ import annotations

from collections.abc import Callable

CompiledFunction = Callable[..., object]  # what a backend returns to Dynamo
