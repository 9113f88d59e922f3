"""Calls stay with the program that ran them first, and no function is compiled more often."""

import random

import pytest
import torch
from torch._dynamo.backends.debugging import aot_eager

import tofuse
from tofuse.capture.dynamo.keep_selection import EarlierPrograms

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.fixture
def programs(monkeypatch):
    """The number of programs that are compiled."""
    counted: list[object] = []
    add = EarlierPrograms.add

    def recorded(earlier, gm, inputs, code):
        counted.append(gm)
        add(earlier, gm, inputs, code)

    monkeypatch.setattr(EarlierPrograms, "add", recorded)
    return counted


def softmax(x, factor=1.0, count=2):
    return torch.softmax(x * factor, -1) / count


def squares(x, factor=1.0, count=2):
    return (x * x).sum(-1) * factor + torch.arange(count).sum()


def pairs(x, y):
    return torch.softmax(x, -1).sum(0) + torch.softmax(y, -1).sum(0)


def random_arguments(rng, function):
    x = torch.randn(rng.choice([8, 24, 64, 33]), 16 if function is pairs else rng.choice([8, 40]))
    if function is pairs:
        return (x, torch.randn(rng.choice([8, 24]), 16))
    numbers = [rng.choice([0.5, 2.0, 0.7]), rng.choice([2, 3, 5])]
    return (x, *numbers[: rng.choice([0, 0, 1, 2])])


@pytest.mark.parametrize("function", [softmax, squares, pairs])
def test_random_calls(function, programs, request):
    for seed in range(40 if request.config.getoption("--full") else 3):
        rng = random.Random(seed)
        kinds = [random_arguments(rng, function) for _ in range(5)]
        calls = [*range(5), *(rng.randrange(5) for _ in range(20))]
        torch._dynamo.reset()
        programs.clear()
        compiled, first = tofuse.compile(function, hand_back=False), dict[int, torch.Tensor]()
        for k in calls:
            got = compiled(*kinds[k])
            assert torch.equal(got, first.setdefault(k, got)), (seed, [k.shape for k, *_ in kinds])
        torch._dynamo.reset()
        baseline = list[object]()

        def backend(gm, inputs, baseline=baseline):
            baseline.append(gm)
            return aot_eager(gm, inputs)

        eager = torch.compile(function, backend=backend)
        for k in calls:
            eager(*kinds[k])
        assert len(programs) <= len(baseline), seed


@pytest.mark.parametrize("words", [{}, {"min": 2, "max": 100}])
def test_a_dimension_that_must_be_dynamic(words):
    compiled = tofuse.compile(softmax, hand_back=False)
    first = compiled(torch.ones(8, 16))
    x = torch.ones(24, 16)
    torch._dynamo.mark_dynamic(x, 0, **words)
    compiled(x)
    assert torch.allclose(compiled(torch.ones(8, 16)), first)
    y = torch.ones(9, 16)
    torch.testing.assert_close(compiled(y), softmax(y))


def test_two_sizes_that_were_one_symbol(programs):
    compiled = tofuse.compile(pairs, hand_back=False)
    inputs = [
        (torch.randn(a, 16), torch.randn(b, 16)) for a, b in ((8, 8), (24, 24), (8, 24), (33, 33))
    ]
    first = [compiled(*args) for args in inputs]
    for _ in range(3):
        for args, expected in zip(inputs, first, strict=True):
            assert torch.equal(compiled(*args), expected)
    assert len(programs) <= 3
