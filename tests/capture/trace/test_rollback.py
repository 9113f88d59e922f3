"""What a program traced once does with the tensors that modules hold."""

import copy

import pytest
import torch
from torch import nn

import tofuse
from tofuse.errors import CaptureError


def test_results_that_are_a_modules_own_tensors():
    torch.manual_seed(0)
    norm = nn.utils.parametrizations.spectral_norm(nn.Linear(5, 5))
    twin, x = copy.deepcopy(norm), torch.randn(2, 5)
    compiled = tofuse.memory_efficient_fusion(norm)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), twin(x))
    torch.testing.assert_close(norm.state_dict(), twin.state_dict())


@pytest.mark.parametrize("name", ["count", "hidden"])
def test_a_module_that_replaces_a_tensor_is_an_error(name):
    class Keeps(nn.Module):
        count: torch.Tensor

        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(3))
            self.hidden, self.seen = torch.zeros(3), None

        def forward(self, x):
            self.seen = x * 2
            setattr(self, name, getattr(self, name) + x)
            return self.seen + getattr(self, name)

    module = Keeps()
    with pytest.raises(CaptureError, match=f"replaces a tensor, Keeps.{name}"):
        tofuse.memory_efficient_fusion(module)(torch.ones(3))
    assert module.seen is None and type(getattr(module, name)) is torch.Tensor
    assert list(module.state_dict()) == ["count"] and not module.hidden.any()


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
def test_a_module_that_learns_its_shapes_from_the_first_call():
    net = nn.Sequential(nn.LazyLinear(3), nn.ReLU())
    compiled, x = tofuse.memory_efficient_fusion(net), torch.randn(2, 4)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), net(x))


def test_a_submodule_that_is_replaced():
    inner = nn.Sequential(nn.ReLU(), nn.Linear(3, 2))
    net = nn.Sequential(nn.Linear(3, 3), inner)
    compiled, x = tofuse.memory_efficient_fusion(net), torch.randn(2, 3)
    for change in (
        lambda: None,
        lambda: net.__setitem__(0, nn.Linear(3, 3)),
        lambda: inner.append(nn.Tanh()),
        lambda: inner.__setitem__(2, nn.Dropout(0.0)),
    ):
        change()
        for _ in range(2):
            torch.testing.assert_close(compiled(x), net(x))
