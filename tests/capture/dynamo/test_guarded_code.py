"""Guarded code from disk runs only where Dynamo's guards hold, whatever a call brings."""

import random

import pytest
import torch
from torch import nn

from tests.support.warm import captures, compile_again


@pytest.fixture
def options(tmp_path, fresh_dynamo):
    return {"cache_dir": tmp_path, "hand_back": False}


def scaled(x, k):
    return x * k + 1


OTHERS = {
    "int": 4,
    "float": 3.0,
    "bool": True,
    "tensor": torch.arange(5.0),
    "scalar": torch.tensor(2.0),
    "empty": torch.ones(0),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_an_argument_of_another_type(other, options):
    warm = compile_again(scaled, options, torch.randn(5), 3)
    x = torch.randn(5) if getattr(other, "numel", lambda: 1)() else torch.ones(0)
    torch.testing.assert_close(warm(torch.ones(5), 3), scaled(torch.ones(5), 3))
    assert not captures()
    torch.testing.assert_close(warm(x, other), scaled(x, other))


def test_a_call_with_other_arguments_is_the_functions_error(options):
    warm = compile_again(scaled, options, torch.randn(5), 3)
    warm(torch.randn(5), 3)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        warm(torch.randn(5))
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        warm(torch.randn(5), 3, more=1)


def test_default_arguments_are_assigned(options):
    def program(x, k=2, *, m=3):
        return x * k + m

    warm, x = compile_again(program, options, torch.randn(5)), torch.randn(5)
    torch.testing.assert_close(warm(x), x * 2 + 3)
    assert not captures()
    program.__defaults__ = (5,)
    torch.testing.assert_close(warm(x), x * 5 + 3)
    program.__kwdefaults__ = {"m": 7}
    torch.testing.assert_close(warm(x), x * 5 + 7)


class Signed(nn.Module):
    def __init__(self, zero):
        super().__init__()
        self.zero = zero

    def forward(self, x):
        return torch.atan2(x * 0 + self.zero, x * 0 - 1) + 1


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_zeros_of_another_sign(zero, options):
    compile_again(Signed(-zero), options, torch.ones(3))
    warm = compile_again(Signed(zero), options, torch.ones(3))
    torch.testing.assert_close(warm(torch.ones(3)), Signed(zero)(torch.ones(3)))


def test_random_numbers_of_python_are_drawn(options):
    def program(x):
        return x * random.random() + 1

    warm, x = compile_again(program, options, torch.ones(3)), torch.ones(3)
    for seed in range(3):
        random.seed(seed)
        expected = program(x)
        random.seed(seed)
        torch.testing.assert_close(warm(x), expected)


def test_a_function_is_replaced(options):
    helper = torch.sin

    def program(x):
        return helper(x) + 1

    warm, x = compile_again(program, options, torch.randn(3)), torch.randn(3)
    torch.testing.assert_close(warm(x), x.sin() + 1)
    helper = torch.cos
    torch.testing.assert_close(warm(x), x.cos() + 1)


def test_parameters_with_names_that_the_check_uses(options):
    def program(type, objects, _part1=None, hasattr=None, *, cells=2.0):
        return type * objects + cells

    args = torch.randn(3), torch.randn(3)
    warm = compile_again(program, options, *args)
    torch.testing.assert_close(warm(*args), program(*args))
    torch.testing.assert_close(warm(*args, cells=4.0), program(*args, cells=4.0))


MODELS = {
    "LSTM": (lambda: nn.LSTM(5, 3, batch_first=True), lambda: torch.randn(2, 7, 5)),
    "transformer": (
        lambda: nn.TransformerEncoderLayer(6, 2, 10, dropout=0.0, batch_first=True),
        lambda: torch.randn(1, 3, 6),
    ),
    "transposed images": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.GroupNorm(1, 3), nn.SiLU()),
        lambda: torch.randn(1, 1, 7, 5).transpose(2, 3),
    ),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(7, 3), nn.LayerNorm(3)),
        lambda: torch.tensor([[1, 2, 3]]),
    ),
    "float64": (lambda: nn.Linear(4, 1).double(), lambda: torch.randn(1, 4).double()),
    "no rows": (lambda: nn.Sequential(nn.Linear(4, 3), nn.ELU()), lambda: torch.randn(0, 4)),
    "strided": (
        lambda: nn.Sequential(nn.Linear(7, 11), nn.Softmax(0)),
        lambda: torch.randn(13, 14)[:, ::2],
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_of_any_family(name, options):
    make, example = MODELS[name]
    model = make()
    warm = compile_again(model, options, example())
    for _ in range(2):
        x = example()
        torch.testing.assert_close(warm(x), model(x))
        torch.testing.assert_close(warm(x[:1]), model(x[:1]))
