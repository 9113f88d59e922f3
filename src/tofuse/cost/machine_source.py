"""Choose the machine costs: from a file, from an earlier calibration, or assumed ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tofuse.config import Config
from tofuse.cost.host import host
from tofuse.cost.machine import (
    Machine,
    default_machine,
    parse_machine,
)
from tofuse.cost.thresholds import LIBRARY_AMX_FLOPS_PER_NS_AND_THREAD
from tofuse.disk_store import store_of
from tofuse.errors import OptionError, ParseError
from tofuse.ir.schedule import Target

VERSION = "4"  # of the calibration, part of the store's key


def assumed_machine(target: Target, config: Config) -> Machine:
    """Return the costs for decisions, which must not vary from run to run.

    They come from the file of the option `machine`, or are a function of the target and cache
    sizes. Raises OptionError if the file cannot be read.
    """
    if config.machine is not None:
        return _from_file(config.machine)
    processor = host()
    base = default_machine(target.threads, target.lanes, processor.l2_bytes, processor.l3_bytes)
    base = (
        replace(base, half_flops=LIBRARY_AMX_FLOPS_PER_NS_AND_THREAD) if target.bf16_tiles else base
    )
    return replace(base, flops=2 * base.flops) if target.fast_gemm else base


def measured_machine(target: Target, config: Config) -> Machine:
    """Return the costs for predictions: calibrated ones if there are any."""
    if config.machine is not None:
        return _from_file(config.machine)
    return _load(target, config) or assumed_machine(target, config)


def check_machine(config: Config) -> None:
    """Raise OptionError if the option `machine` does not name a file of costs."""
    if config.machine is not None:
        _from_file(config.machine)


def store_machine(machine: Machine, target: Target, config: Config) -> None:
    """Store calibrated costs for this process and later ones."""
    store_of(config).put("machine", _key(target), str(machine))


def _load(target: Target, config: Config) -> Machine | None:
    """Return the calibrated costs on disk; None if there are none for this target."""
    text = store_of(config).get("machine", _key(target))
    try:
        machine = parse_machine(text or "")
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
            f"machine={str(path)!r} is not a file of machine costs: {e}; "
            "write str(tofuse.calibrate()) into a file to create one"
        ) from e
