"""What names in code lead to, and that a change of it shows."""

import abc
import functools
import math
import os
import pickle

import pytest
import torch

from tofuse.capture.dynamo.code_names import code_names
from tofuse.capture.dynamo.dependencies import dependencies
from tofuse.capture.dynamo.lookups import Scope
from tofuse.capture.dynamo.references import code_place
from tofuse.capture.dynamo.survey import survey
from tofuse.errors import UnsupportedError


class Rope:
    """A plain class."""

    scale = 2.0

    def apply(self, x):
        return x * self.scale

    def other(self, x):
        return x


class Shape(abc.ABC):
    """An abstract class."""

    @abc.abstractmethod
    def area(self): ...


ROPE = Rope()


def helper(x, k=1.0):
    return x * k


def program(x):
    return helper(ROPE.apply(x)) * math.sqrt(2.0) + isinstance(x, Shape)


def digests(*functions):
    """The digests of a survey in which the functions were traced."""
    codes = [f.__code__ for f in functions]
    names = frozenset().union(*(code_names(c).names | code_names(c).texts for c in codes))
    scope = Scope(frozenset(map(code_place, codes)), names, False, frozenset())
    return survey(functions, scope, {}).digests


@pytest.fixture
def traced():
    return program, helper, Rope.apply


def test_a_survey_repeats(traced):
    assert digests(*traced) == digests(*traced)


def test_pickling_an_instance_changes_no_digest(traced):
    before = digests(*traced)
    pickle.dumps(ROPE)
    assert "__slotnames__" in vars(Rope)  # Python keeps it in the class
    assert digests(*traced) == before


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (Rope, "apply", lambda self, x: x),
        (Rope, "scale", 3.0),
        (Rope, "__len__", lambda self: 0),
        (Rope, "__iter__", lambda self: iter(())),
        (helper, "__defaults__", (2.0,)),
        (math, "sqrt", math.exp),
        (torch.Tensor, "__mul__", torch.Tensor.__add__),
    ],
)
def test_a_change_of_what_is_read_shows(owner, name, value, traced, monkeypatch):
    before = digests(*traced, torch.Tensor.backward)
    monkeypatch.setattr(owner, name, value, raising=False)
    assert digests(*traced, torch.Tensor.backward) != before


@pytest.mark.parametrize("name", ["other", "unread", "__doc__"])
def test_a_change_of_what_is_not_read_does_not_show(name, traced, monkeypatch):
    before = digests(*traced)
    monkeypatch.setattr(Rope, name, "changed", raising=False)
    assert digests(*traced) == before


def test_registrations_with_abstract_classes_show(traced):
    class Square(Shape):
        pass

    before = digests(*traced)
    Square.register(Rope)
    assert digests(*traced) != before


@pytest.mark.parametrize(
    "function", [lambda: os.getenv("STALE"), lambda: os.environ["ST" + "ALE"]], ids=["one", "all"]
)
def test_variables_of_the_environment_show(function, monkeypatch):
    before = digests(function)
    monkeypatch.setenv("STALE", "1")
    assert digests(function) != before


def test_other_variables_of_the_environment_do_not_show(monkeypatch):
    function = lambda: os.getenv("STALE")  # noqa: E731
    before = digests(function)
    monkeypatch.setenv("STALE_2", "1")
    assert digests(function) == before


def test_what_functions_wrap_shows():
    def make(k):
        def wrapped(x):
            return x * k

        cached = functools.lru_cache(wrapped)
        partial = functools.partial(wrapped, 1)

        def call(x):
            return cached(partial())

        return call

    assert digests(make(2.0)) == digests(make(2.0)) != digests(make(3.0))


def test_code_that_decides_what_an_instance_is_cannot_be_compared():
    class Meta(type):
        def __instancecheck__(cls, value):
            return True

    class Anything(metaclass=Meta):
        pass

    with pytest.raises(UnsupportedError, match="has an __instancecheck__ of the user"):
        digests(lambda x: isinstance(x, Anything))


def test_code_that_no_name_leads_to_cannot_be_compared():
    hidden = lambda x: x + 1  # noqa: E731
    with pytest.raises(UnsupportedError, match="no name leads to the code"):
        dependencies([helper], [helper.__code__, hidden.__code__], [])


def test_a_constant_result_is_compared_if_it_has_no_arguments():
    @torch._dynamo.assume_constant_result
    def mode(name="a"):
        return RESULTS[0]

    RESULTS = ["first"]
    call = lambda: mode()  # noqa: E731
    before = digests(call)
    RESULTS[0] = "second"
    assert digests(call) != before


def test_changes_are_named(monkeypatch):
    roots = (program, Rope)
    found = dependencies(roots, [f.__code__ for f in (program, helper, Rope.apply)], [])
    assert found.changes(roots) == []
    monkeypatch.setattr(Rope, "apply", lambda self, x: x)
    assert f"class {__name__}.Rope" in found.changes(roots)
