"""What may be compiled: functions, modules, and what is compiled already."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tofuse
from tofuse.errors import OptionError


def shifted(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


WAYS: dict[str, Callable[[Any], Any]] = {
    "tofuse": tofuse.compile,
    "trace": lambda f: tofuse.compile(f, capture="trace"),
    "torch": lambda f: torch.compile(f, backend="aot_eager"),
    "backend": lambda f: torch.compile(f, backend="tofuse"),
}


@pytest.mark.parametrize("outer", WAYS)
@pytest.mark.parametrize("inner", WAYS)
def test_a_compiled_function_or_module_is_compiled_again(inner, outer, fresh_dynamo):
    x = torch.randn(3, 4)
    twice = WAYS[outer](WAYS[inner](shifted))
    torch.testing.assert_close(twice(x), shifted(x))
    linear = torch.nn.Linear(4, 2)
    torch.testing.assert_close(WAYS[outer](WAYS[inner](linear))(x), linear(x))


@pytest.mark.parametrize("outer", ["tofuse", "trace"])
def test_a_module_compiled_in_place_is_compiled(outer, fresh_dynamo, capsys):
    model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.GELU())
    model.compile(backend="eager")
    compiled = tofuse.compile(model, show="plan", capture="trace" if outer == "trace" else "dynamo")
    compiled(torch.randn(3, 4))
    assert "launch" in capsys.readouterr().out


def test_an_explained_function_may_be_compiled(fresh_dynamo):
    report = tofuse.explain(tofuse.compile(shifted))(torch.randn(3))
    assert len(report.kernels) == 1


@pytest.mark.parametrize("other", [{"verify": True}, {"capture": "trace"}, {"tune": "measure"}])
def test_options_that_another_process_cannot_have(other):
    with pytest.raises(OptionError, match="background"):
        tofuse.compile(torch.sin, background=True, **other)
