"""torch's structured trace (`TORCH_TRACE`), which tlparse shows as pages."""

from __future__ import annotations

from collections.abc import Callable

from tofuse.torch_internals.private_names import always, private

_trace: Callable[..., object] = private(
    "torch._logging", "trace_structured", "tlparse shows nothing of tofuse", always(None)
)


def trace_artifact(name: str, make: Callable[[], str]) -> None:
    """Add a text to the trace; `make` runs only if torch writes one."""
    _trace("artifact", metadata_fn=lambda: {"name": name, "encoding": "string"}, payload_fn=make)
