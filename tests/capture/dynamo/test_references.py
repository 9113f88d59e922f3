"""Objects by importable name, and digests of code and of its files."""

import collections
import enum
import types

import pytest
import torch
from torch import nn

from tofuse.capture.dynamo.references import (
    code_digest,
    code_place,
    is_constant,
    is_own_class,
    is_released,
    reference_to,
    same_constant,
)
from tofuse.errors import UnsupportedError


class Color(enum.Enum):
    RED = 1


@pytest.mark.parametrize(
    "value",
    [
        *(torch, nn.Linear, torch.relu, nn.functional.gelu, len, dict, collections.OrderedDict),
        *(type(None), types.FunctionType, torch._C._get_tracing_state, Color, Color.RED),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_reference_leads_to_its_object(value):
    assert reference_to(value).resolve() is value


@pytest.mark.parametrize(
    "value", [lambda x: x, nn.Linear(1, 1), object()], ids=["a lambda", "a module", "an object"]
)
def test_an_object_without_a_name_has_no_reference(value):
    with pytest.raises(UnsupportedError):
        reference_to(value)


def test_a_name_that_leads_to_another_object_is_no_reference():
    def replaced(x):
        return x

    replaced.__module__, replaced.__qualname__ = "torch", "relu"
    with pytest.raises(UnsupportedError):
        reference_to(replaced)


@pytest.mark.parametrize(
    "value", [1, 2.5, "a", None, ..., (1, [2, {"k": {3}}]), slice(1, None), range(3), torch.int8]
)
def test_constants(value):
    assert is_constant(value) and same_constant(value, value)


def test_constants_of_other_types_differ():
    assert not is_constant([object()])
    assert not same_constant(1, True) and not same_constant([1], [1.0])
    assert not same_constant({"a": 1}, {"a": 1, "b": 2})
    assert same_constant(float("nan"), float("nan"))


def test_digests_of_code_tell_what_it_does():
    def define(text):
        scope: dict = {}
        exec(text, scope)
        return scope["f"].__code__

    same = [define("def f(x): return x + 1"), define("\n\ndef f(x): return x + 1")]
    others = ["def f(x): return x + 2", "def f(y): return y + 1", "def f(x): return x - 1"]
    digests = {code_digest(define(text)) for text in others}
    assert code_digest(same[0]) == code_digest(same[1])
    assert len(digests) == 3 and code_digest(same[0]) not in digests


def test_digests_of_code_see_the_order_and_the_sign_of_constants():
    def digest(text):
        return code_digest(compile(text, "<a file>", "exec"))

    assert digest("x in {'a', 'b', 'c'}") == digest("x in {'c', 'b', 'a'}")
    assert digest("x = (1, 2.0)") != digest("x = (1, -2.0)") != digest("x = (-0.0, 0.0)")
    assert digest("x = (-0.0, 1)") != digest("x = (0.0, 1)")


def test_equal_code_of_two_files_has_two_places():
    first, second = (compile("x + 1", name, "eval") for name in ("a.py", "b.py"))
    assert code_place(first) != code_place(second)
    assert code_place(first) == code_place(compile("x + 1", "a.py", "eval"))


def test_files_of_python_and_torch_are_released():
    assert is_released(collections.__file__) and is_released(torch.__file__)
    assert is_released("<frozen os>") and is_own_class(nn.Linear) and is_own_class(dict)
    assert not is_released(__file__) and not is_own_class(Color)
