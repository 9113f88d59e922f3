"""JSON of frozen dataclasses: written by their fields, read back by the declared types."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TypeVar, Union

T = TypeVar("T")
Json = Union[None, bool, int, float, str, Sequence["Json"], Mapping[str, "Json"]]  # noqa: UP007  (run time)


@dataclass(frozen=True)
class TextForm:
    """How values of a type are written as one string, and read."""

    write: Callable[..., str]
    read: Callable[[str], object]


TextForms = Mapping[type, TextForm]


def to_json(value: object, forms: TextForms) -> Json:
    """Return a value as JSON; `forms` has the types that are written as text."""
    form = forms.get(type(value))
    if form is not None:
        return form.write(value)
    if isinstance(value, Mapping):
        return {str(k): to_json(v, forms) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(v, forms) for v in value]
    if is_dataclass(value):
        return {f.name: to_json(getattr(value, f.name), forms) for f in fields(value)}
    assert value is None or isinstance(value, (bool, int, float, str)), type(value)
    return value


def from_json(declared: type[T], value: object, forms: TextForms) -> T:
    """Return the value of the declared type that `to_json` wrote.

    Raises ValueError, which names the place, if the JSON is not that of such a value.
    """
    return _read(declared, value, forms, "")  # type: ignore[return-value]  # of the declared type


def _read(declared: object, value: object, forms: TextForms, where: str) -> object:
    if not _fits(declared, value, forms):
        raise ValueError(f"{where or 'the description'} is {_show(value)}, not {_name(declared)}")
    origin, parameters = typing.get_origin(declared), typing.get_args(declared)
    if origin in (Union, types.UnionType):
        chosen = next(x for x in parameters if _fits(x, value, forms))
        return _read(chosen, value, forms, where)
    if isinstance(declared, type) and declared in forms:
        return _read_text(forms[declared], str(value), where)
    if isinstance(value, list):
        repeated = parameters[1:] == (...,)
        each = (parameters[0],) * len(value) if repeated else parameters
        pairs = enumerate(zip(each, value, strict=True))
        return tuple(_read(x, v, forms, f"{where}[{k}]") for k, (x, v) in pairs)
    if isinstance(value, dict) and isinstance(declared, type) and is_dataclass(declared):
        hints = _field_types(declared)
        return declared(
            **{k: _read(hints[k], v, forms, f"{where}.{k}".lstrip(".")) for k, v in value.items()}
        )
    if isinstance(value, dict):
        return {k: _read(parameters[1], v, forms, f"{where}[{k!r}]") for k, v in value.items()}
    return value


def _fits(declared: object, value: object, forms: TextForms) -> bool:
    """Return whether JSON is that of a type, as far as its outermost level says."""
    origin, parameters = typing.get_origin(declared), typing.get_args(declared)
    if origin in (Union, types.UnionType):
        return any(_fits(x, value, forms) for x in parameters)
    if origin is tuple:
        repeated = parameters[1:] == (...,)
        return isinstance(value, list) and (repeated or len(value) == len(parameters))
    if isinstance(declared, type) and declared in forms:
        return isinstance(value, str)
    if isinstance(declared, type) and is_dataclass(declared):
        return isinstance(value, dict) and value.keys() == _field_types(declared).keys()
    if origin is not None:  # a mapping
        return isinstance(value, dict)
    return type(value) is declared or (declared is float and type(value) is int)


@functools.cache
def _field_types(declared: type) -> Mapping[str, object]:
    hints = typing.get_type_hints(declared)
    return {f.name: hints[f.name] for f in fields(declared)}


def _read_text(form: TextForm, text: str, where: str) -> object:
    try:
        return form.read(text)
    except (LookupError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"{where}: {str(error) or type(error).__name__}") from error


def _show(value: object) -> str:
    """Return the start of the text of a value."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_LENGTH else f"{text[:MAX_SHOWN_LENGTH]}..."


def _name(declared: object) -> str:
    """Return the name of a type, for an error."""
    return declared.__name__ if isinstance(declared, type) else str(declared)


MAX_SHOWN_LENGTH = 60
