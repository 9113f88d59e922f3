"""Random arguments of calls, with everything that printing and parsing could confuse."""

from __future__ import annotations

import math
from random import Random

from tofuse.ir.call_arguments import (
    CallArgument,
    CallArguments,
    Device,
    OperandRef,
    TensorRef,
    TorchConstant,
)
from tofuse.ir.dims import Dim, symbol
from tofuse.ir.size_expression import SIZE_FUNCTIONS, SizeTerm, apply_function

FLOATS = (0.0, -0.0, math.inf, -math.inf, math.nan, 0.1, -1e-300, 1e22, 5e-324)
STRINGS = ("", "$0", "'", '"', "\\", "a, $1", "x='y\"", "\n\u2028", "t_x", "None", "]) = call (")
CONSTANTS = (TorchConstant("float32"), TorchConstant("strided"), TorchConstant("channels_last"))


def random_arguments(random: Random, in_plan: bool) -> CallArguments:
    """Return the arguments of a graph's op, or of a plan's call."""
    positional = tuple(random_argument(random, in_plan, 3) for _ in range(random.randrange(4)))
    names = random.sample(("dim", "dtype", "out", "s0"), random.randrange(4))
    return CallArguments(positional, tuple((k, random_argument(random, in_plan, 2)) for k in names))


def random_argument(random: Random, in_plan: bool, depth: int) -> CallArgument:
    """Return an argument, in a plan or in a graph, with at most `depth` lists around an element."""
    if depth and random.random() < 0.2:
        count = random.randrange(4)
        return tuple(random_argument(random, in_plan, depth - 1) for _ in range(count))
    number, real = random.randrange(20), random.choice(FLOATS)
    return random.choice(
        (
            None,
            random.random() < 0.5,
            random.choice((0, 1, -1, number, -(2**63), 2**64)),
            real,
            complex(real, random.choice(FLOATS)),
            random.choice(STRINGS),
            random.choice(CONSTANTS),
            Device(random.choice(("cpu", "cuda:0"))),
            TensorRef(f"t_v{number}") if in_plan else OperandRef(number),
            random_size(random, 3),
        )
    )


def random_size(random: Random, depth: int) -> SizeTerm:
    """Return a size or a size expression of at most `depth` levels."""
    if depth == 0 or random.random() < 0.3:
        dim: Dim = random.choice((1, 3, -2))
        for _ in range(random.randrange(3)):
            dim = dim * symbol(random.choice(("s0", "s1", "e0"))) + random.choice((0, 1, -3))
        return random.choice((dim, random.choice(FLOATS))) if depth < 3 else dim
    function = random.choice(tuple(SIZE_FUNCTIONS))
    count = random.randrange(1, 4) if function.isidentifier() else 2
    return apply_function(function, *(random_size(random, depth - 1) for _ in range(count)))
