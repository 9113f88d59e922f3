"""The same call has the same bits, however many calls came before it, and in a later process."""

import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tofuse

ROOT = Path(__file__).parents[2]  # where `tests` is imported from
pytestmark = pytest.mark.usefixtures("fresh_dynamo")

UNARY = (
    *(torch.sin, torch.exp, torch.tanh, torch.sigmoid, F.gelu, F.silu, torch.abs, F.relu),
    *(lambda x: x * 1.7 + 0.3, lambda x: x * x, lambda x: x / 3, lambda x: x.neg().rsqrt()),
)
ROWS = (
    *(lambda x: torch.softmax(x, -1), lambda x: F.layer_norm(x, x.shape[-1:])),
    *(lambda x: x - x.mean(-1, keepdim=True), lambda x: x / (x.std(0) + 1), lambda x: x.cumsum(0)),
    *(lambda x: x @ x.T @ x * 1e-3, lambda x: F.normalize(x, dim=-1), lambda x: x.amax(0) - x),
)
DTYPES = (torch.float32, torch.float32, torch.float32, torch.float64, torch.bfloat16)


def random_program(rng):
    """A function of one matrix, and whether it draws random numbers."""
    steps = [rng.choice(UNARY if rng.random() < 0.6 else ROWS) for _ in range(rng.randint(1, 6))]
    draws = rng.random() < 0.15
    last = rng.choice([lambda x: x, torch.sum, lambda x: x.sum(0), lambda x: x.mean(-1)])

    def program(x, scale=1.0):
        for step in steps:
            x = step(x)
        x = F.dropout(x, 0.3) if draws else x
        return last(x) * scale

    return program


def random_module(rng):
    width = rng.choice([16, 33])
    layers = [nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width), nn.Dropout(0.2), nn.Tanh()]
    model = nn.Sequential(*rng.sample(layers, rng.randint(1, 4)))
    return model, width


def bits(result):
    return hashlib.sha256(result.detach().contiguous().view(torch.uint8).numpy()).hexdigest()


def digest(call, x, args, grad):
    """The bits of a call's result and gradients, with a seed of its own."""
    torch.manual_seed(7)
    if not grad:
        with torch.no_grad():
            return bits(call(x, *args).reshape(-1))
    x = x.detach().requires_grad_()
    result = call(x, *args)
    leaves = [x, *(call.parameters() if isinstance(call, nn.Module) else ())]
    gradients = torch.autograd.grad(result.float().square().sum(), leaves, allow_unused=True)
    return " ".join(bits(t.reshape(-1)) for t in (result, *gradients) if t is not None)


def random_calls(rng, dynamic):
    """A compiled program, and calls of it of several kinds, each with the same arguments."""
    options = {"hand_back": rng.random() < 0.7, "dynamic": rng.choice(dynamic)}
    torch.manual_seed(rng.randrange(1000))
    numbers: list[tuple[float, ...]] = [()]
    if rng.random() < 0.3:
        model, width = random_module(rng)
        compiled = tofuse.compile(model, **options)
        dtype = torch.float32
    else:
        compiled, width = tofuse.compile(random_program(rng), **options), None
        numbers += [(0.5,), (0.7,)] if rng.random() < 0.3 else []
        dtype = rng.choice(DTYPES)
    shapes = [(rng.choice([4, 8, 24, 200, 1000]), width or rng.choice([8, 37])) for _ in range(3)]
    grads = rng.choice([(False,), (True,), (False, True)])
    inputs = [torch.randn(*s).to(dtype) for s in shapes]
    kinds = [(x, args, grad) for x in inputs for args in numbers for grad in grads]
    return compiled, rng.sample(kinds, min(len(kinds), 4))


def check_program(seed, calls, dynamic=(None, None, True, False)):
    """Call kinds in random order; return the bits of each, which must not change."""
    torch._dynamo.reset()
    rng = random.Random(seed)
    compiled, kinds = random_calls(rng, dynamic)
    found: dict[int, str] = {}
    for k in [*range(len(kinds)), *(rng.randrange(len(kinds)) for _ in range(calls))]:
        got = digest(compiled, *kinds[k])
        x, args, grad = kinds[k]
        name = f"seed {seed}: {tuple(x.shape)} {x.dtype} {args} grad {grad}"
        assert found.setdefault(k, got) == got, name
    return [found[k] for k in range(len(kinds))]


def test_random_programs(request):
    """`--full` runs 1000 programs; 60 calls of each."""
    full = request.config.getoption("--full")
    for seed in range(1000 if full else 10):
        check_program(seed, 60 if full else 20)


SCRIPT = """
import json, sys
from tests.behavior.test_same_bits import check_program
print(json.dumps([check_program(k, 8, (True, False)) for k in range(int(sys.argv[1]))]))
"""


def test_a_second_process_has_the_bits_of_the_first(tmp_path, request):
    """Unless torch makes sizes symbolic because they vary: such programs are not kept on disk."""
    count = 200 if request.config.getoption("--full") else 3
    environment = os.environ | {"TOFUSE_CACHE_DIR": str(tmp_path)}
    outputs = []
    for _ in range(2):
        command = [sys.executable, "-c", SCRIPT, str(count)]
        run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        outputs.append(json.loads(run.stdout.splitlines()[-1]))
    assert outputs[0] == outputs[1]
