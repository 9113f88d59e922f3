"""The backend that torch.compile uses if a call names none."""

from __future__ import annotations

from collections.abc import Callable

from tofuse.errors import UnsupportedError
from tofuse.torch_internals.private_names import private


def set_default_backend(name: str) -> None:
    """Set the default backend of torch.compile.

    Raises UnsupportedError for releases of torch that cannot, such as 2.11.
    """
    _set(name)


def _unsupported(name: str) -> None:
    raise UnsupportedError(
        "torch.compile of this torch has no default backend to set (newer releases have one); "
        f"write torch.compile(model, backend={name!r}) in the script"
    )


_set: Callable[[str], None] = private("torch.compiler", "set_default_backend", "", _unsupported)
