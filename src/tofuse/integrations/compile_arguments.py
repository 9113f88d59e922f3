"""The arguments of torch.compile for options of `tofuse.compile`."""

from __future__ import annotations

from typing import TypedDict

from tofuse.config import Option, make_config
from tofuse.errors import OptionError


class CompileArguments(TypedDict, total=False):
    """Arguments of `torch.compile` and of `torch.nn.Module.compile`."""

    backend: str
    dynamic: bool | None
    fullgraph: bool
    mode: str | None
    options: dict[str, Option]


def compile_arguments(options: dict[str, Option]) -> CompileArguments:
    """Return what torch.compile gets for these options.

    Raises OptionError for unknown options and values, and for `capture`, which torch.compile does.
    """
    config = make_config(options)
    if "capture" in options:
        raise OptionError("torch.compile captures the program here: leave out 'capture'")
    rest = {name: value for name, value in options.items() if name not in CAPTURED}
    arguments = CompileArguments(
        backend="tofuse", dynamic=config.dynamic, fullgraph=config.fullgraph
    )
    if rest:
        arguments["options"] = rest
    return arguments


CAPTURED = ("dynamic", "fullgraph")  # arguments of torch.compile itself
