"""Names in bytecode, and constant arguments of calls."""

import functools
import os
import os as system
from os import environ, getenv

import pytest

from tofuse.capture.dynamo.code_names import (
    calls_without_arguments,
    code_names,
    computes_names,
    constant_keys,
)

READERS = frozenset(("environ", "getenv"))


def _constant_name(x):
    return getattr(x, "foo")  # noqa: B009  (a call is what is tested)


def _constant_name_of_an_expression(x):
    return getattr(x.y(3).z[2], "foo", None)


def _names_in_turn(x, n):
    return hasattr(x, "foo") and getattr(getattr(x, "bar"), "baz", n)  # noqa: B009


def _name_that_is_set(x, n):
    setattr(x, "foo", n + 1)  # noqa: B010


def _variable_name(x, n):
    return getattr(x, n)


def _formatted_name(x, n):
    return getattr(x, f"a{n}")


def _sum_of_names(x, n):
    return getattr(x, "a" + n)


def _inner_variable_name(x, n):
    return getattr(getattr(x, n), "bar", None)


def _name_after_an_index(x, n):
    return getattr(x["a"], n)


def _one_of_two_names(x, n):
    return getattr(x, "a" if n else "b")


def _function_as_a_value(x, n):
    return functools.partial(getattr, x)


def _all_attributes(x, n):
    return vars(x)


@pytest.mark.parametrize(
    "function",
    [_constant_name, _constant_name_of_an_expression, _names_in_turn, _name_that_is_set],
)
def test_constant_names_are_no_computed_names(function):
    assert not computes_names(function.__code__)
    assert "foo" in code_names(function.__code__).texts


@pytest.mark.parametrize(
    "function",
    [
        *(_variable_name, _formatted_name, _sum_of_names, _inner_variable_name),
        *(_name_after_an_index, _one_of_two_names, _function_as_a_value, _all_attributes),
    ],
)
def test_computed_names_are_seen(function):
    assert computes_names(function.__code__)


@pytest.mark.parametrize(
    "function",
    [
        lambda: os.getenv("A"),
        lambda: system.environ.get("A", "3"),
        lambda: os.environ["A"],
        lambda: "A" in os.environ or "A" not in environ,
        lambda: getenv("A"),
        lambda: environ.get("A"),
        lambda: [environ["A"] for _ in range(3)],
    ],
)
def test_constant_keys(function):
    assert constant_keys(function.__code__, READERS) == frozenset("A")


@pytest.mark.parametrize(
    "function",
    [
        lambda k: environ[k],
        lambda k: os.environ.get(f"{k}A"),
        lambda k: os.environ.get(k, "A"),
        lambda k: os.environ.copy(),
        lambda k: os.environ["A" + k],
        lambda k: getenv("A" + k),
        lambda k: k in os.environ,
        lambda k: "A" + k in os.environ,
        lambda k: k(os.environ, "A"),
        lambda k: {**os.environ, "A": k},
    ],
)
def test_keys_that_are_not_known(function):
    assert constant_keys(function.__code__, READERS) is None


def test_one_of_two_keys_is_not_taken_for_the_only_one():
    """Some releases of Python make two tests of it, each with a constant."""
    found = constant_keys((lambda k: ("A" if k else "B") in os.environ).__code__, READERS)
    assert found is None or found == frozenset("AB")


def test_names_of_nested_code_imports_and_handlers():
    def function(x):
        import torch.nn.functional as functional

        try:
            return [functional.gelu(y.data) for y in x]
        except KeyError:
            return None

    found = code_names(function.__code__)
    assert {"gelu", "data", "KeyError"} <= found.names
    assert "torch.nn.functional" in found.imports and found.catches
    assert not code_names(_variable_name.__code__).catches


def test_calls_without_arguments():
    assert calls_without_arguments((lambda: os.getcwd() + os.getcwd()).__code__, "getcwd")
    assert not calls_without_arguments((lambda x: os.listdir(x)).__code__, "listdir")
    assert not calls_without_arguments((lambda: functools.partial(os.getcwd)).__code__, "getcwd")
