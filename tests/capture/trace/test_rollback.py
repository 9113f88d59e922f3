"""Tensors of modules that a traced program reads, returns or replaces."""

import copy

import pytest
import torch
from torch import nn

import tofuse
from tofuse.errors import CaptureError


def test_results_that_are_module_buffers():
    torch.manual_seed(0)
    norm = nn.utils.parametrizations.spectral_norm(nn.Linear(5, 5))
    twin, x = copy.deepcopy(norm), torch.randn(2, 5)
    compiled = tofuse.memory_efficient_fusion(norm)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), twin(x))
    torch.testing.assert_close(norm.state_dict(), twin.state_dict())


@pytest.mark.parametrize("name", ["count", "hidden"])
def test_module_that_replaces_a_tensor_is_an_error(name):
    class Replaces(nn.Module):
        count: torch.Tensor

        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(3))
            self.hidden, self.doubled = torch.zeros(3), None

        def forward(self, x):
            self.doubled = x * 2
            setattr(self, name, getattr(self, name) + x)
            return self.doubled + getattr(self, name)

    module = Replaces()
    with pytest.raises(CaptureError, match=f"replaces a tensor, Replaces.{name}"):
        tofuse.memory_efficient_fusion(module)(torch.ones(3))
    assert module.doubled is None and type(getattr(module, name)) is torch.Tensor
    assert list(module.state_dict()) == ["count"] and not module.hidden.any()


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
def test_lazy_modules():
    net = nn.Sequential(nn.LazyLinear(3), nn.ReLU())
    compiled, x = tofuse.memory_efficient_fusion(net), torch.randn(2, 4)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), net(x))


def test_replaced_submodules():
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
