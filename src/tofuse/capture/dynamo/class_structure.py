"""Attributes of classes and functions that Python and Dynamo read without a name in the code."""

from __future__ import annotations

import functools
import inspect
from _abc import _get_dump  # type: ignore[import-not-found]  # of CPython
from abc import ABCMeta
from collections.abc import Iterator
from types import FunctionType

import torch


def is_special(name: str) -> bool:
    """Return whether Python, or Dynamo by itself, reads an attribute of this name."""
    return name.startswith("__") and name.endswith("__") and name not in UNREAD


def structure_of(cls: type) -> frozenset[str]:
    """Return the attributes without special names that are read of a class."""
    return STRUCTURE | MODULE_METHODS if issubclass(cls, torch.nn.Module) else STRUCTURE


def registered_classes(cls: type) -> Iterator[type]:
    """Yield the classes that were registered as subclasses of an abstract class."""
    if isinstance(cls, ABCMeta):
        registry, *_ = _get_dump(cls)
        yield from (found for reference in registry if (found := reference()) is not None)


def constant_function(value: object) -> FunctionType | None:
    """Return the function of constant results that a value is, or wraps as `lru_cache` does."""
    inner = inspect.unwrap(value) if isinstance(value, WRAPPERS) else None
    return inner if isinstance(inner, FunctionType) and is_constant_function(inner) else None


def is_constant_function(function: FunctionType) -> bool:
    """Return whether Dynamo calls a function while it traces, as `assume_constant_result` says."""
    return bool(function.__dict__.get("_dynamo_marked_constant", False))


WRAPPERS = (FunctionType, type(functools.lru_cache(len)))
# Attributes of classes that say nothing of what code does.
UNREAD = frozenset(
    (
        *("__doc__", "__module__", "__qualname__", "__dict__", "__weakref__", "__annotations__"),
        *("__orig_bases__", "__parameters__", "__abstractmethods__", "__firstlineno__"),
        *("__static_attributes__", "__type_params__", "__annotate__"),
        *("__annotate_func__", "__annotations_cache__", "__classdictcell__"),
        "__slotnames__",  # which `copyreg` adds when an instance is pickled
    )
)
# Special methods whose exceptions Python catches, as `hasattr` and `for` do.
RAISING = ("__getattr__", "__getattribute__", "__getitem__", "__missing__", "__next__", "__get__")
# Methods that Dynamo may run without tracing them.
UNSEEN = frozenset(
    (
        *("_missing_", "__format__", "__bool__", "__class_getitem__", "__subclasshook__"),
        *("__eq__", "__hash__", "__or__", "__ror__", "__instancecheck__", "__subclasscheck__"),
    )
)
# Attributes without special names that Python reads of enumerations and named tuples, and Dynamo of
# modules.
STRUCTURE = frozenset(("_fields", "_field_defaults", "_member_map_", "_missing_"))
MODULE_METHODS = frozenset(("forward", "_call_impl", "_wrapped_call_impl"))
