"""Random concats and stacks, whose operands have other readers, give eager's results."""

import random

import pytest
import torch

from tests.support.eager import assert_as_eager

STEPS = [
    torch.sin,
    lambda x: x * 0.5 - 1,
    torch.Tensor.relu,
    lambda x: x.softmax(-1),
    lambda x: x.cumsum(0),
    lambda x: x - x.mean(0, keepdim=True),
    lambda x: x.flip(0),
    lambda x: x.T.contiguous().T,
]


def random_program(seed):
    """A function of one matrix that concatenates values chosen from all of that shape."""
    draw = random.Random(seed)
    rounds = []
    for _ in range(draw.randint(1, 3)):
        steps = [(draw.choice(STEPS), draw.random()) for _ in range(draw.randint(3, 9))]
        count = draw.choice([2, 4, 7, 8, 12, 13])
        picks = [draw.random() for _ in range(count)]
        rounds.append((steps, picks, draw.choice(["cat", "stack"]), draw.randint(0, 1)))
    returned = [draw.random() for _ in range(draw.randint(0, 2))]

    def f(x):
        pool, results = [x], []
        for steps, picks, kind, dim in rounds:
            for step, which in steps:
                pool.append(step(pool[int(which * len(pool))]))
            operands = [pool[int(which * len(pool))] for which in picks]
            concat = getattr(torch, kind)(operands, dim)
            results += [concat * 2 if dim else concat]
            size = x.shape[dim]
            pool.append(concat.narrow(dim, 0, size).reshape(x.shape) if kind == "cat" else x)
        return (*results, *(pool[int(which * len(pool))] + 0 for which in returned))

    return f


@pytest.mark.broad(4)
@pytest.mark.parametrize("seed", range(60))
def test_random_concats(seed):
    shape = random.Random(seed).choice([(5, 16), (16, 16), (1, 33), (7, 4)])
    x = torch.randn(shape, requires_grad=seed % 2 == 0)
    options = {"capture": "trace", "strict": True, "verify": seed % 7 == 0}
    assert_as_eager(random_program(seed), x, rtol=1e-3, atol=1e-3, calls=1, options=options)
