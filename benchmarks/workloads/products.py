"""Products whose weights are decoded, with cold weights, and products over chosen experts."""

import itertools

import torch
from torch import Tensor

from benchmarks.check import as_tuple
from benchmarks.seeds import Program, Size
from benchmarks.workloads.base import Case, CaseMaker, Step, Workload, nbytes
from benchmarks.workloads.decodes import FORMATS

COLD_BYTES = 100_000_000  # of all copies of a weight: three times the largest cache
ROWS = (1, 8, 64)


def layer(name: str, rows: int) -> CaseMaker:
    """Return a case of a linear layer; each call takes another copy of the codes."""

    def make(size: Size, dtype: torch.dtype) -> Case:
        columns, depth = (4096, 4096) if size == "full" else (64, 128)
        form = FORMATS[name]
        codes = form.make(columns, depth)
        count = -(-COLD_BYTES // nbytes(codes)) if size == "full" else 2
        return cycled(form.layer, torch.randn(rows, depth).to(dtype), codes, count)

    return make


def experts(size: Size, dtype: torch.dtype) -> Case:
    """Each token multiplies the weight of its expert."""
    tokens, count, depth, columns = (4, 16, 1024, 2048) if size == "full" else (3, 4, 8, 16)
    weights = torch.randn(count, depth, columns).to(dtype)
    x, chosen = torch.randn(tokens, depth).to(dtype), torch.randint(0, count, (tokens,))

    def program(x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        return torch.einsum("td,tdf->tf", x, weights[chosen])

    return cycled(program, x, (weights, chosen), 2)


def cycled(program: Program, x: Tensor, weights: tuple[Tensor, ...], count: int) -> Case:
    """Return a case of a program whose calls take `count` copies of the weights in turn."""
    copies = [tuple(w.clone() for w in weights) for _ in range(count)]

    def drive(compiled: Program) -> Step:
        turn = itertools.cycle(copies)
        return Step(lambda: as_tuple(compiled(x, *next(turn))), lambda: nbytes((x, *weights)))

    return Case(program, drive)


PRODUCTS = (
    *(
        Workload(f"{name}_{rows}_rows{suffix}", "products", layer(form, rows), dtype)
        for suffix, dtype in (("", torch.float32), ("_bf16", torch.bfloat16))
        for name, form in (
            ("int8", "int8"),
            ("int4_32", "int4, groups of 32, zero"),
            ("int4_128", "int4, groups of 128"),
            ("nf4", "nf4"),
            ("ternary", "ternary"),
            ("fp8", "float8_e4m3"),
        )
        for rows in ROWS
    ),
    Workload("experts", "products", experts),
)
