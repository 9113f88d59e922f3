"""Results have eager's strides, for operands in random layouts and factors that may be zero."""

import itertools
import random

import torch
import torch.nn.functional as F

import tofuse

FACTORS = (0, 1, 0.5)
PAIRS = tuple(itertools.product(FACTORS, FACTORS))
MATRICES = {
    "addr": lambda x, y, b, a: torch.addr(x, x[:, 0], x[0], beta=b, alpha=a),
    "addmm": lambda x, y, b, a: torch.addmm(x, x, y.T @ y, beta=b, alpha=a),
    "addmv": lambda x, y, b, a: torch.addmv(x[:, 0], x, y[0], beta=b, alpha=a),
    "add": lambda x, y, b, a: torch.add(x, y, alpha=a),
    "addcmul": lambda x, y, b, a: torch.addcmul(x, y, y[0], value=a),
    "lerp": lambda x, y, b, a: torch.lerp(x, y, a),
    "rrelu": lambda x, y, b, a: F.rrelu(x, 0.1, 0.3),
}
BROADCAST = {  # of shapes such as 4x1x5, 4x3x1 and 3x5
    "clamp": lambda x, y, z: torch.clamp(x, y, z),
    "where": lambda x, y, z: torch.where(x > 0, y, z),
    "addcmul": lambda x, y, z: torch.addcmul(x, y, z),
    "lerp": lambda x, y, z: torch.lerp(x, y, z),
}
VOLUMES = {
    "max_pool3d": lambda x: F.max_pool3d(x, 2, return_indices=True),
    "avg_pool3d": lambda x: (F.avg_pool3d(x, 2),),
    "adaptive_max_pool3d": lambda x: F.adaptive_max_pool3d(x, 2, return_indices=True),
}


def in_random_layout(shape, rng):
    """Return a tensor of permuted dimensions, perhaps every other element of a larger one."""
    order, step = rng.sample(range(len(shape)), len(shape)), rng.choice([1, 1, 2])
    wide = torch.randn([shape[d] * step for d in order])
    part = wide[tuple(slice(step - 1, None, step) for _ in shape)]
    return part.permute([order.index(d) for d in range(len(shape))])


def check(program, names, *tensors):
    torch._dynamo.reset()
    got, expected = tofuse.compile(program, hand_back=False)(*tensors), program(*tensors)
    for name, ours, eagers in zip(names, got, expected, strict=True):
        strides = [(t.shape, t.stride()) for t in tensors]
        torch.testing.assert_close(ours, eagers)
        pairs = zip(eagers.shape, ours.stride(), eagers.stride(), strict=True)
        assert all(a == b for n, a, b in pairs if n > 1), (name, strides, ours.stride())


def test_random_layouts_of_matrices():
    names = [name for name in MATRICES for _ in PAIRS]
    for seed in range(4):
        rng = random.Random(seed)
        x, y = (in_random_layout((6, 5), rng) for _ in range(2))
        check(lambda x, y: [f(x, y, *p) for f in MATRICES.values() for p in PAIRS], names, x, y)


def test_random_layouts_of_operands_that_are_broadcast():
    for seed in range(6):
        rng = random.Random(seed)
        shapes = [[4, rng.choice([3, 1]), 5], [4, 3, rng.choice([5, 1])], [3, 5]]
        tensors = [in_random_layout(shape, rng) for shape in shapes]
        check(lambda x, y, z: [f(x, y, z) for f in BROADCAST.values()], BROADCAST, *tensors)


def test_random_layouts_of_volumes():
    names = [name for name in VOLUMES for _ in range(1 if name == "avg_pool3d" else 2)]
    for seed in range(6):
        rng = random.Random(seed)
        x = in_random_layout((2, 3, 6, 4, 5)[rng.choice([0, 1]) :], rng)
        check(lambda x: [r for f in VOLUMES.values() for r in f(x)], names, x)
    for x in (torch.randn(6, 4, 5, 3).movedim(-1, 0), torch.randn(2, 6, 4, 5, 3).movedim(-1, 1)):
        check(lambda x: [r for f in VOLUMES.values() for r in f(x)], names, x)
