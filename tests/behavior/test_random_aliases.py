"""Compiled programs of views, writes and escapes share and change memory as eager does."""

import random

import pytest
import torch

import tofuse

PROGRAMS = 200

VIEWS = (
    lambda x, n: x.transpose(0, -1) if x.dim() else x.reshape(1),
    lambda x, n: x[n % x.shape[0] :: 1 + n % 2] if x.dim() else x.unsqueeze(0),
    lambda x, n: x.unsqueeze(n % (x.dim() + 1)),
    lambda x, n: x.reshape(-1),  # a view or a copy
    lambda x, n: x.expand(2, *x.shape)[n % 2],
    lambda x, n: x.split(2)[-1] if x.dim() else x.view_as(x),
    lambda x, n: x.select(n % x.dim(), 0) if x.dim() else x.view(1, 1),
    lambda x, n: x.as_strided((2,), (1,)) if x.numel() > 1 else x.squeeze(),
)
WRITES = (
    lambda x, y: x.add_(1),
    lambda x, y: x.copy_(y.sum()),
    lambda x, y: x.mul_(y.mean()),
    lambda x, y: x.zero_(),
)
OTHERS = (
    lambda x, y: x + 1,
    lambda x, y: torch.cat([x.reshape(-1), y.reshape(-1)]),
    lambda x, y: x.sum(0) if x.dim() else x * 2,
    lambda x, y: x.reshape(-1).cumsum(0),
)


def random_function(seed: int):
    rng = random.Random(seed)
    steps = [(rng.choice((0, 0, 0, 1, 2)), rng.random(), rng.randrange(100)) for _ in range(6)]
    results = [rng.random() for _ in range(3)]

    def run(*tensors: torch.Tensor):
        values = [*tensors]
        for kind, place, n in steps:
            x, y = values[int(place * len(values))], values[-1]
            choices = (VIEWS, WRITES, OTHERS)[kind]
            values.append(choices[n % len(choices)](x, n if kind == 0 else y))
        return [values[int(r * len(values))] for r in results]

    return run


def sharing(tensors: list[torch.Tensor]) -> list[object]:
    """The first tensor of the same storage, and where each lies in it if an argument owns it."""
    storages = [t.untyped_storage().data_ptr() for t in tensors]
    return [
        (storages.index(s), t.storage_offset() if storages.index(s) < 2 else 0, t.shape, t.stride())
        for s, t in zip(storages, tensors, strict=True)
    ]


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_random_program(seed):
    function = random_function(seed)
    compiled = tofuse.compile(function)
    for _ in range(2):
        torch.manual_seed(seed)
        ours = [torch.randn(4, 3), torch.randn(2, 2, 2)]
        eager = [t.clone() for t in ours]
        expected, results = function(*eager), compiled(*ours)
        torch.testing.assert_close([*ours, *results], [*eager, *expected])
        assert sharing([*ours, *results]) == sharing([*eager, *expected])
