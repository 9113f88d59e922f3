"""With symbolic sizes, a training step holds no more than eager, or than with static sizes."""

import random

import pytest
import torch
from torch import nn
from torch.nn import functional

import tofuse
from tests.support.peak import peak_bytes

WIDTH = 32
TOLERANCE = 1.05


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        q, k, v = self.project(x).unflatten(-1, (3, 2, WIDTH // 2)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v)
        return x + attended.transpose(1, 2).flatten(2)


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x):
        return torch.relu(self.convolution(x.transpose(1, 2))).transpose(1, 2)


class Prepended(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))

    def forward(self, x):
        return torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)


def perceptron():
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))


LAYERS = (perceptron, Attention, Convolution, Prepended, lambda: nn.LayerNorm(WIDTH))


def random_program(seed):
    torch.manual_seed(seed)
    chosen = random.Random(seed).choices(LAYERS, k=6)
    return nn.Sequential(*[make() for make in chosen])


def peak(run, module, batch):
    x = torch.randn(batch, 65, WIDTH, requires_grad=True)
    return peak_bytes(lambda x, *_: run(x), x, *module.parameters())


@pytest.mark.parametrize("seed", range(50))
@pytest.mark.broad(17)
def test_symbolic_sizes_hold_as_little_as_static_ones(seed, monkeypatch, fresh_dynamo):
    monkeypatch.setattr("tofuse.backends.cpu.runtime.pool.POOL.limit", 0)
    module = random_program(seed)
    eager = peak(module, module, 17)
    static = peak(tofuse.compile(module, dynamic=False), module, 17)
    torch._dynamo.reset()
    compiled = tofuse.compile(module, dynamic=True, specialize=False)
    assert peak(compiled, module, 17) <= max(TOLERANCE * eager, static)


def test_symbolic_sizes_do_not_change_what_eager_holds(fresh_dynamo):
    for seed in range(2):
        module, x = random_program(seed), torch.randn(17, 65, WIDTH)
        reports = [tofuse.explain(module, dynamic=dynamic)(x) for dynamic in (False, True)]
        static, symbolic = ([g.eager_peak_bytes for g in r.graphs] for r in reports)
        assert symbolic == static
