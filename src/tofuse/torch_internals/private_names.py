"""Lookup of torch's private names: each is checked when imported, and may be missing."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from typing import NoReturn, TypeVar

from tofuse.config import ABSENT_TORCH_NAMES
from tofuse.errors import UnsupportedError

T = TypeVar("T")
EVERYTHING = "PyTorch runs every program"
TRACING = "PyTorch runs every program with capture='trace'"


@dataclass(frozen=True)
class PrivateName:
    """A private name of torch, whether this torch has it, and what is lost without it."""

    name: str
    found: bool
    lost: str


def private(
    module: str, attribute: str, lost: str, fallback: T, check: Callable[[T], bool] | None = None
) -> T:
    """Return torch's object of this name, or `fallback` if there is none or `check` fails.

    `lost` says in a report what the fallback costs: speed, but no result. It is empty if a release
    that we support lacks the name. If it is `EVERYTHING` or
    `TRACING`, no program (of that capture) may be compiled, and the fallback is not called.
    """
    name, found = f"{module}.{attribute}", False
    result = fallback
    try:
        if name not in ABSENT_TORCH_NAMES:
            result = attrgetter(attribute)(import_module(module))
            found = check is None or check(result)
    except Exception:  # whatever an unknown torch does, `import tofuse` succeeds
        found = False
    _names[name] = PrivateName(name, found, lost)
    return result if found else fallback


def has_attribute(owner: object, attribute: str, lost: str) -> bool:
    """Return whether the instances of a class of torch have a private attribute; as `private`."""
    name = f"{type(owner).__module__}.{type(owner).__name__}.{attribute}"
    try:
        getattr(owner, attribute)
        found = name not in ABSENT_TORCH_NAMES
    except Exception:
        found = False
    _names[name] = PrivateName(name, found, lost)
    return found


def essential(
    module: str,
    *attributes: str,
    lost: str = EVERYTHING,
    check: Callable[[object], bool] | None = None,
) -> list[object]:
    """Return the objects of these names, or stand-ins that raise an error when called."""
    return [private(module, a, lost, stand_in(f"{module}.{a}"), check) for a in attributes]


def stand_in(name: str) -> type[Exception]:
    """Return a class without instances, for a missing class, exception, enum or function."""
    return _StandIn(name, (Exception,), {})  # type: ignore[return-value]  # a metaclass


def lacking(*args: object, **kwargs: object) -> NoReturn:
    """Raise an error: the stand-in for a function."""
    raise UnsupportedError("this release of torch lacks a function")


def always(value: T) -> Callable[..., T]:
    """Return the fallback of a function that takes any arguments and returns `value`."""
    return lambda *args, **kwargs: value


def itself(value: T) -> T:
    """Return the argument: the fallback of a function that finds a faster form of it."""
    return value


def takes(*parameters: str) -> Callable[[object], bool]:
    """Return a check that a function has these parameters."""

    def check(function: object) -> bool:
        return callable(function) and {*parameters} <= {*inspect.signature(function).parameters}

    return check


def returns_bool(query: Callable[[], bool]) -> bool:
    """Return whether a function without parameters says yes or no."""
    return isinstance(query(), bool)


def private_names() -> tuple[PrivateName, ...]:
    """Return every private name of torch that the package knows."""
    return tuple(_names.values())


def missing_names() -> tuple[PrivateName, ...]:
    """Return the private names that this torch lacks."""
    return tuple(n for n in _names.values() if not n.found)


def missing_notes() -> list[str]:
    """Return a sentence for a report on each name that this torch lacks."""
    return [f"this release of torch has no {n.name}: {n.lost}" for n in missing_names() if n.lost]


def unsupported_capture(capture: str) -> str | None:
    """Return why no program can be captured this way; None if it can be."""
    needed = (EVERYTHING, TRACING) if capture == "trace" else (EVERYTHING,)
    names = [n.name for n in missing_names() if n.lost in needed]
    return f"this release of torch has no {', no '.join(names)}" if names else None


class _StandIn(type):
    """The type of stand-ins: members of a missing enum are their names."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("_"):
            raise AttributeError(name)
        return name

    def __call__(cls, *args: object, **kwargs: object) -> NoReturn:
        raise UnsupportedError(f"this release of torch has no {cls.__name__}")


_names: dict[str, PrivateName] = {}
