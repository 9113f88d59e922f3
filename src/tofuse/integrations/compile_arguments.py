"""The arguments of torch.compile for options of `tofuse.compile`."""

from __future__ import annotations

from tofuse.config import ARGUMENTS_OF_TORCH, Option, make_config
from tofuse.errors import OptionError

CompileArguments = dict[str, Option | dict[str, Option]]


def compile_arguments(options: dict[str, Option]) -> CompileArguments:
    """Return what torch.compile gets for these options.

    Raises OptionError for unknown options and values, and for `capture`, which torch.compile does.
    """
    make_config(options)
    if "capture" in options:
        raise OptionError("torch.compile captures the program here: leave out 'capture'")
    arguments: CompileArguments = {"backend": "tofuse"}
    arguments |= {name: options[name] for name in ARGUMENTS_OF_TORCH if name in options}
    rest = {name: value for name, value in options.items() if name not in arguments}
    return arguments | ({"options": rest} if rest else {})
