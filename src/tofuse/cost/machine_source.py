"""Which costs to reckon with: a file's, those measured here before, or assumed ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from platformdirs import user_cache_dir

from tofuse.cache.store import Store
from tofuse.config import Config
from tofuse.cost.host import host
from tofuse.cost.machine import (
    Machine,
    default_machine,
    parse_machine,
    show_machine,
)
from tofuse.errors import OptionError, ParseError
from tofuse.ir.schedule import Target

VERSION = "3"  # of what is measured; other files are another version's

_known: dict[tuple[Path, str, Target], Machine | None] = {}  # what the disk holds, read once


def store_of(config: Config) -> Store:
    """Where this configuration keeps things from process to process."""
    return Store(config.cache_dir or Path(user_cache_dir("tofuse")))


def assumed_machine(target: Target, config: Config) -> Machine:
    """What decisions reckon with: never measured numbers, which vary from time to time.

    The file that the option `machine` names, or a function of vectors, threads and cache sizes.
    Raises OptionError where the file cannot be read.
    """
    if config.machine is not None:
        return _from_file(config.machine)
    found = host()
    base = default_machine(target.threads, target.lanes, found.l2_bytes, found.l3_bytes)
    return replace(base, flops=2 * base.flops) if target.products else base


def measured_machine(target: Target, config: Config) -> Machine:
    """What predictions reckon with: the measured machine where there is one."""
    if config.machine is not None:
        return _from_file(config.machine)
    return _kept(target, config) or assumed_machine(target, config)


def is_measured(target: Target, config: Config) -> bool:
    """Whether predictions rest on measurements, or on a file of them."""
    return config.machine is not None or _kept(target, config) is not None


def check_machine(config: Config) -> None:
    """Raise OptionError where the file that the option `machine` names is none of costs."""
    if config.machine is not None:
        _from_file(config.machine)


def keep_machine(machine: Machine, target: Target, config: Config) -> None:
    """Reckon with a measured machine from now on, in later processes too."""
    store = store_of(config)
    store.put("machine", _key(target), show_machine(machine))
    _known[store.folder, host().name, target] = machine


def _kept(target: Target, config: Config) -> Machine | None:
    store = store_of(config)
    place = (store.folder, host().name, target)
    if place not in _known:
        text = store.get("machine", _key(target))
        _known[place] = None if text is None else _valid(text, target)
    return _known[place]


def _valid(text: str, target: Target) -> Machine | None:
    try:
        machine = parse_machine(text)
    except ParseError:
        return None
    return machine if (machine.threads, machine.lanes) == (target.threads, target.lanes) else None


def _key(target: Target) -> tuple[str, ...]:
    return (host().name, f"{target.threads} threads", f"{target.lanes} lanes", VERSION)


def _from_file(path: Path) -> Machine:
    try:
        return parse_machine(path.read_text(encoding="utf-8"))
    except (OSError, ParseError) as e:
        raise OptionError(
            f"machine={str(path)!r} is not a file of costs: {e}; "
            "str(tofuse.calibrate()) is the text of one"
        ) from e
