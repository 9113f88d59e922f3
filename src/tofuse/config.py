"""Options: one line each; the only reader of the environment."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Union

from tofuse.errors import OptionError

PACKAGE = Path(__file__).parent  # the folder of tofuse's own source
Option = Union[bool, str, float, None, Path, tuple[str, ...]]  # noqa: UP007  (evaluated at run time)
STAGES = ("definition", "graph", "regions", "loops", "source", "plan")


@dataclass(frozen=True)
class Config:
    """How to compile. Every field is an option of `tofuse.compile`."""

    dynamic: bool | None = None  # sizes as symbols: True all, False none, None as torch decides
    specialize: bool = True  # where sizes are symbols: those that keep coming get their own program
    capture: str = "dynamo"  # "trace": once as a pure function; see tofuse.capture.trace
    fullgraph: bool = False  # a graph break is an error
    precision: str = "fast"  # "eager": round half-precision values after every op, as eager does
    fuel: int | None = None  # stop after so many fusions; see tofuse.bisect
    verify: bool = False  # hold every kernel's results against the reference, each time it runs
    strict: bool = False  # a kernel that does not compile is an error, not a warning
    show: tuple[str, ...] = ()  # stages to print while compiling; STAGES names them
    pool_bytes: int | None = None  # most memory kept warm for results; None: a quarter of RAM
    memory_budget: float | None = None  # kept for the backward: a share up to 1, or bytes
    executors: tuple[str, ...] = ("llvm", "aten")  # who runs things, in order of preference
    tune: str = "off"  # "measure": time real candidates for every region, and keep the fastest
    machine: Path | None = None  # file of costs to reckon with instead of assumed or measured ones
    cache_dir: Path | None = None  # what is kept from process to process; None: the user's cache
    dump: Path | None = None  # folder to write every stage's text to


FROM_ENVIRONMENT = ("tune", "show", "pool_bytes", "executors", "machine", "cache_dir", "dump")


def make_config(options: Mapping[str, Option]) -> Config:
    """Options over the environment over defaults; raises OptionError for what is not an option."""
    variables = {name: f"TOFUSE_{name.upper()}" for name in FROM_ENVIRONMENT if name not in options}
    found = {name: text for name, v in variables.items() if (text := os.environ.get(v))}
    try:
        return _config({**found, **options})
    except OptionError as error:
        _config(options)  # raises where that is not right by itself
        names = ", ".join(variables[name] for name in found)
        raise OptionError(f"{error}; the environment sets {names}") from None


def _config(options: Mapping[str, Option]) -> Config:
    known = [f.name for f in fields(Config)]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; options are {', '.join(known)}"
            raise OptionError(f"tofuse has no option {name!r}{hint}")
    precision = options.get("precision", "fast")
    if precision not in ("fast", "eager"):
        raise OptionError(f"precision is 'fast' or 'eager', not {precision!r}")
    capture = options.get("capture", "dynamo")
    if capture not in ("dynamo", "trace"):
        raise OptionError(f"capture is 'dynamo' or 'trace', not {capture!r}")
    tune = options.get("tune") or "off"
    if tune not in ("off", "measure"):
        raise OptionError(f"tune is 'off' or 'measure', not {tune!r}")
    fuel = _fuel(options.get("fuel"))
    return Config(
        dynamic=None if options.get("dynamic") is None else _flag(options, "dynamic"),
        specialize=_flag(options, "specialize", default=True) and fuel is None,  # counted once
        capture=str(capture),
        fullgraph=_flag(options, "fullgraph"),
        precision=str(precision),
        verify=_flag(options, "verify"),
        fuel=fuel,
        strict=_flag(options, "strict"),
        show=_stages(options.get("show")),
        pool_bytes=_pool_bytes(options),
        memory_budget=_memory_budget(options),
        executors=_executors(options),
        tune=str(tune),
        machine=_path(options.get("machine")),
        cache_dir=_path(options.get("cache_dir")),
        dump=_path(options.get("dump")),
    )


def _flag(options: Mapping[str, Option], name: str, *, default: bool = False) -> bool:
    value = options.get(name, default)
    if not isinstance(value, bool):
        known = "True, False or None" if name == "dynamic" else "True or False"
        raise OptionError(f"{name} is {known}, not {value!r}")
    return value


def _names(value: Option) -> tuple[str, ...] | None:
    """Names in a list, or in a text with commas between them; None for anything else."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not all(isinstance(n, str) for n in names):
        return None
    return tuple(n.strip() for n in names if n.strip())


def _stages(value: Option) -> tuple[str, ...]:
    names = _names("" if value is None else value)
    if names is None:
        raise OptionError(f"show is names of stages such as 'graph,plan', not {value!r}")
    for s in names:
        if s not in STAGES:
            raise OptionError(f"there is no stage {s!r} to show; stages are {', '.join(STAGES)}")
    return names


def _executors(options: Mapping[str, Option]) -> tuple[str, ...]:
    given = options.get("executors")
    names = _names("llvm,aten" if given is None else given)
    if not names:
        raise OptionError(f"executors is a tuple of names such as ('llvm', 'aten'), not {given!r}")
    return names


def _path(value: Option) -> Path | None:
    return Path(str(value)) if value else None


def _fuel(value: Option) -> int | None:
    if value is None:
        return None
    if isinstance(value, str) or not str(value).isdigit():
        raise OptionError(f"fuel is a number of fusions, None for all, not {value!r}")
    return int(str(value))


def _pool_bytes(options: Mapping[str, Option]) -> int:
    value = options.get("pool_bytes")
    if value is None:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
    try:
        size = int(str(value))
    except ValueError:
        size = -1
    if size < 0:
        raise OptionError(f"pool_bytes is a number of bytes, 0 for no pool, not {value!r}")
    return size


def _memory_budget(options: Mapping[str, Option]) -> float | None:
    """A share from 0 to 1 of what is saved by default, or a whole number of bytes above 1."""
    value = options.get("memory_budget")
    if value is None:
        return None
    if not isinstance(value, (bool, str, Path, tuple)):
        if 0 <= value <= 1:
            return float(value)
        if value > 1 and str(value).isdigit():
            return int(value)
    raise OptionError(
        "memory_budget is a share from 0 (save nothing but arguments) to 1 (as without it), or a "
        f"whole number of bytes, not {value!r}"
    )
