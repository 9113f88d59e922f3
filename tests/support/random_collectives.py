"""Random programs of collectives and other work, of any size, dtype and layout."""

import random

import torch

import tofuse
from suites.fuzz.compare import strides
from suites.fuzz.program import load_function

SEEDS = range(8)
SIZES = (0, 1, 2, 7, 13, 24)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64)
COLLECTIVES = (
    "all_reduce({a}.contiguous(), 'sum', '0')",
    "all_gather_into_tensor({a}.contiguous(), 2, '0')",
    "reduce_scatter_tensor(torch.cat([{a}, {b}]), 'sum', 2, '0')",
)
OTHERS = ("{a} * 2 - {b}", "{a}.flip(0) + {b}.sum(0, keepdim=True).to({a}.dtype)")


def program_source(rng):
    """Return the text of a function of two tensors of one shape, for two ranks."""
    values, unfinished, lines = ["x", "y"], [], []
    for k in range(rng.randrange(4, 14)):
        places = {"a": rng.choice(values), "b": rng.choice(values)}
        kind = rng.choice(("start", "wait", "wait", "other"))
        if kind == "start":
            unfinished.append(f"u{k}")
            text = rng.choice(COLLECTIVES).format(**places)
            lines.append(f"u{k} = torch.ops._c10d_functional.{text}")
        elif kind == "wait" and unfinished:
            started = unfinished.pop(rng.randrange(len(unfinished)))
            lines.append(f"v{k} = {waited(started)}[: len(x)] - 1")
            values.append(f"v{k}")
        else:
            lines.append(f"v{k} = {rng.choice(OTHERS).format(**places)}")
            values.append(f"v{k}")
    results = ", ".join([*map(waited, unfinished), *values[2:]])
    return "\n    ".join(["def program(x, y):", *lines, f"return [{results}]"])


def waited(name):
    return f"torch.ops._c10d_functional.wait_tensor({name})"


def random_programs_with_collectives(rank, ranks):
    """Compiled programs give eager's results; all ranks get the same program."""
    assert ranks == 2
    for seed in SEEDS:
        torch.compiler.reset()
        rng = random.Random(seed)
        source = program_source(rng)
        function = load_function(source)
        compiled = tofuse.compile(function, dynamic=rng.choice((None, True, False)), strict=True)
        dtype = rng.choice(DTYPES)
        for _ in range(2):
            rows, columns = rng.choice(SIZES), rng.choice(SIZES)
            draw = torch.Generator().manual_seed(100 * seed + rank)
            numbers = torch.randint(-4, 5, (2, columns, rows), generator=draw).to(dtype)
            x, y = numbers.mT  # not contiguous
            y = y.contiguous() if rng.random() < 0.5 else y
            found, wanted = compiled(x, y), function(x, y)
            assert isinstance(found, list) and isinstance(wanted, list)
            for actual, expected in zip(found, wanted, strict=True):
                assert torch.equal(actual, expected), f"seed {seed}, {rows} x {columns}:\n{source}"
                assert strides(actual) == strides(expected), f"seed {seed}:\n{source}"
