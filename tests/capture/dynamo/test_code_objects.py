"""Each compiled function has its own code object: none takes symbolic sizes from another."""

import inspect
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import tofuse

SYMBOL = re.compile(r"\[s\d+,")


class Scaled:
    """An object with a method that is not a module."""

    def __init__(self, by: float) -> None:
        self.by = by

    def scale(self, x: Tensor) -> Tensor:
        """Return x times a number."""
        return x.sin() * self.by


@pytest.mark.parametrize("kind", ["modules", "methods"])
def test_sizes_of_other_functions_do_not_become_symbolic(
    kind: str, capsys: pytest.CaptureFixture[str]
):
    sizes = ((4, 8), (6, 8), (6, 3, 8, 8))
    fs: list[Callable[[Tensor], Tensor]] = [Scaled(k).scale for k in range(3)]
    if kind == "modules":
        fs = [nn.Linear(8, 8), nn.Softmax(-1), nn.Conv2d(3, 4, 3)]
    for f, size in zip(fs, sizes, strict=True):
        x = torch.randn(size)
        compiled = tofuse.compile(f, show="graph", strict=True)
        torch.testing.assert_close(compiled(x), f(x))
    printed = capsys.readouterr().out
    assert "f32[6,8]" in printed, "the graphs are printed with their sizes"
    assert not SYMBOL.search(printed)
    compiled(torch.randn(5, *sizes[-1][1:]))
    assert SYMBOL.search(capsys.readouterr().out), "sizes of one function that vary are symbolic"


def test_method_keeps_its_name_and_signature():
    compiled = tofuse.compile(Scaled(3.0).scale)
    assert compiled.__name__ == "scale"
    assert compiled.__doc__ == "Return x times a number."
    assert list(inspect.signature(compiled).parameters) == ["x"]
