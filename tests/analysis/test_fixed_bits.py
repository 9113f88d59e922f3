"""Programs whose bits no schedule changes: with symbolic and constant sizes they are the same."""

import random

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.capture_only import compiled as captured
from tofuse.analysis.fixed_bits import has_fixed_bits
from tofuse.ir.parse_graph import parse_graph

UNARY = (
    *(torch.sin, torch.exp, torch.tanh, torch.sigmoid, F.gelu, F.silu, torch.erf, torch.log1p),
    *(torch.sqrt, torch.rsqrt, torch.lgamma, torch.atan, torch.floor, torch.sign, torch.neg),
    *(lambda x: x * 1.7 + 0.3, lambda x: x * x - x, lambda x: x / 3, lambda x: 1 / x),
    *(lambda x: x**2, lambda x: x**-1.5, lambda x: x.abs() ** 0.3, lambda x: x.clamp(-1, 1)),
    *(lambda x: torch.where(x > 0, x, x.exp()), lambda x: torch.atan2(x, x + 1)),
    *(lambda x: x.double().sin().float(), lambda x: torch.remainder(x, 0.7)),
)
SHAPED = (
    *(lambda x: x.T.contiguous().T, lambda x: x.flip(0), lambda x: torch.cat([x, x * 2], 0)),
    *(
        lambda x: x[1:] * x[:-1],
        lambda x: x + x[0],
        lambda x: F.pad(x, (1, 2)),
        lambda x: x[:, ::2],
    ),
    *(lambda x: x.reshape(-1), lambda x: x.roll(1, 0), lambda x: x.unsqueeze(0).expand(2, -1, -1)),
)
LAST = (
    *(lambda x: x, lambda x: (x > 0).sum(), lambda x: (x > 0).any(-1), lambda x: x.argmax(-1)),
    *(lambda x: (x * 100).nan_to_num(0, 0, 0).long().sum(-1),),
)


def random_program(rng):
    steps = [rng.choice(UNARY) for _ in range(rng.randint(1, 6))]
    if rng.random() < 0.6:
        steps.insert(rng.randrange(len(steps)), rng.choice(SHAPED))
    last = rng.choice(LAST)

    def program(x):
        for step in steps:
            x = step(x) if x.dim() == 2 or step in UNARY else x
        return last(x)

    return program


def test_symbolic_and_constant_sizes_give_the_same_bits(request):
    """`--full` tries 100 programs."""
    rng, fixed = random.Random(0), 0
    for _ in range(100 if request.config.getoption("--full") else 6):
        function = random_program(rng)
        dtype = rng.choice([torch.float32, torch.float32, torch.float64])
        sizes = [(rng.choice([3, 16, 67, 500]), rng.choice([5, 32, 129])) for _ in range(3)]
        run, recorder = captured(function, dynamic=True)
        run(torch.randn(sizes[0], dtype=dtype))
        if not all(has_fixed_bits(c.graph) for c in recorder.captured):
            continue
        fixed += 1
        torch._dynamo.reset()
        symbolic = tofuse.compile(function, dynamic=True, specialize=False)
        for size in sizes:
            x = torch.randn(size, dtype=dtype)
            got = symbolic(x)
            torch._dynamo.reset()
            expected = tofuse.compile(function, dynamic=False)(x)
            assert torch.equal(got.nan_to_num(), expected.nan_to_num()), (sizes, size, dtype)
    assert fixed > 2


CASES = {
    "add(v0, v0) : f32[s0]": True,
    "add(v0, 1.5) : f32[s0]": True,
    "add(v0, s0) : f32[s0]": False,
    "reshape(v0) : f32[1, s0]": True,
    "sum(v0, dims=(0,), dtype=f32) : f32[]": False,
    "amax(v0, dims=(0,)) : f32[]": False,
    "argmax(v0, dims=(0,)) : i64[]": True,
}


@pytest.mark.parametrize("op", CASES)
def test_which_ops_have_fixed_bits(op):
    graph = parse_graph(f"graph(v0: f32[s0]) {{\n  v1 = {op}\n  return v1\n}}")
    assert has_fixed_bits(graph) == CASES[op]


def test_half_precision_is_rounded_or_not():
    graph = parse_graph("graph(v0: bf16[4]) {\n  v1 = neg(v0) : bf16[4]\n  return v1\n}")
    assert not has_fixed_bits(graph)
