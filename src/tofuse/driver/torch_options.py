"""Options of `torch.compile` for the backend "tofuse", and what Inductor's mean there."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import fields

from tofuse.config import ARGUMENTS_OF_TORCH, Config, Option
from tofuse.errors import OptionError, TofuseWarning
from tofuse.torch_internals.inductor import inductor_options

TUNING = ("max_autotune", "max_autotune_pointwise", "coordinate_descent_tuning")  # of Inductor
_warned: set[str] = set()


def own_options(options: Mapping[str, Option], mode: str | None) -> dict[str, Option]:
    """Return the options for `make_config`; the first use of one of Inductor's is a warning.

    Inductor's options of tuning mean `tune="measure"`.

    Raises OptionError for options of the capture, which are arguments of torch.compile, and for
    compilation in the background.
    """
    if options.get("background"):
        raise OptionError("background is for tofuse.compile: torch.compile captures at once")
    for name in ("capture", *ARGUMENTS_OF_TORCH):
        if name in options:
            raise OptionError(
                f"the backend 'tofuse' has no option {name!r}: torch.compile captures the program, "
                "and has an argument for it"
            )
    ours = {f.name for f in fields(Config)}
    foreign = [name for name in options if name not in ours]
    known = inductor_options() if foreign else ()
    ignored = [name for name in foreign if _normalize_name(name) in known]
    result = {name: value for name, value in options.items() if name not in ignored}
    if mode is not None:
        result["mode"] = mode
    if any(value and _normalize_name(name) in TUNING for name, value in options.items()):
        result.setdefault("tune", "measure")
    _warn([name for name in ignored if _normalize_name(name) not in TUNING and name not in _warned])
    return result


def _normalize_name(name: str) -> str:
    return name.replace("-", "_")


def _warn(ignored: list[str]) -> None:
    _warned.update(ignored)
    if ignored:
        names = ", ".join(map(repr, ignored))
        warnings.warn(
            f"the backend 'tofuse' ignores options of Inductor: {names}",
            TofuseWarning,
            stacklevel=2,
        )
