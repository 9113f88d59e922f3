"""Products whose weights are decoded, products with neighbours, and products over experts.

The calls of a case take copies of the weights in turn, more than the caches hold.
"""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.check import as_tuple
from benchmarks.seeds import Program, Size
from benchmarks.workloads.base import Case, CaseMaker, Step, Workload, nbytes
from benchmarks.workloads.decodes import FORMATS

COLD_BYTES = 100_000_000  # of all copies of a weight: three times the largest cache
ROWS = (1, 8, 64)
GROUP = 32  # of the int4 format that PyTorch's operator takes


def layer(name: str, rows: int) -> CaseMaker:
    """Return a case of a linear layer; each call takes another copy of the codes."""

    def make(size: Size, dtype: torch.dtype) -> Case:
        columns, depth = (4096, 4096) if size == "full" else (64, 128)
        form = FORMATS[name]
        codes = form.make(columns, depth)
        return cycled(form.layer, torch.randn(rows, depth).to(dtype), codes, size)

    return make


def experts(size: Size, dtype: torch.dtype) -> Case:
    """Each token multiplies the weight of its expert."""
    tokens, count, depth, columns = (4, 16, 1024, 2048) if size == "full" else (3, 4, 8, 16)
    weights = torch.randn(count, depth, columns).to(dtype)
    x, chosen = torch.randn(tokens, depth).to(dtype), torch.randint(0, count, (tokens,))

    def program(x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        return torch.einsum("td,tdf->tf", x, weights[chosen])

    return cycled(program, x, (weights, chosen), size)


def grouped_experts(size: Size, dtype: torch.dtype) -> Case:
    """Two layers of experts, of the tokens sorted by expert."""
    tokens, count, depth, columns = (64, 8, 1024, 2048) if size == "full" else (8, 2, 16, 32)
    up = torch.randn(count, depth, columns).to(dtype) / 32
    down = torch.randn(count, columns, depth).to(dtype) / 32
    x = torch.randn(tokens, depth).to(dtype)
    ends = torch.arange(1, count + 1, dtype=torch.int32) * (tokens // count)

    def program(x: Tensor, up: Tensor, down: Tensor, ends: Tensor) -> Tensor:
        h = F.silu(torch._grouped_mm(x, up, offs=ends))
        return torch._grouped_mm(h, down, offs=ends)

    return cycled(program, x, (up, down, ends), size)


def looped_experts(size: Size, dtype: torch.dtype) -> Case:
    """Every expert computes all tokens; a token adds the results of two experts."""
    tokens, count, depth, columns = (4, 8, 1024, 2048) if size == "full" else (3, 4, 8, 16)
    up = torch.randn(count, columns, depth).to(dtype) / 32
    down = torch.randn(count, depth, columns).to(dtype) / 32
    x = torch.randn(tokens, depth).to(dtype)
    shares = torch.rand(tokens, count).to(dtype)

    def program(x: Tensor, up: Tensor, down: Tensor, shares: Tensor) -> Tensor:
        values, chosen = shares.topk(2)
        kept = torch.zeros_like(shares).scatter(1, chosen, values)
        total = torch.zeros_like(x)
        for k in range(count):
            total = total + F.linear(F.silu(F.linear(x, up[k])), down[k]) * kept[:, k : k + 1]
        return total

    return cycled(program, x, (up, down, shares), size)


def cycled(program: Program, x: Tensor, weights: tuple[Tensor, ...], size: Size) -> Case:
    """Return a case of a program whose calls take copies of the weights in turn."""
    count = -(-COLD_BYTES // nbytes(weights)) if size == "full" else 2
    copies = [tuple(w.clone() for w in weights) for _ in range(count)]

    def drive(compiled: Program) -> Step:
        turn = itertools.cycle(copies)
        return Step(lambda: as_tuple(compiled(x, *next(turn))), lambda: nbytes((x, *weights)))

    return Case(program, drive)


def int8_operator(rows: int) -> CaseMaker:
    """Return a case of PyTorch's operator for `int8`, in bfloat16."""

    def make(size: Size, dtype: torch.dtype) -> Case:
        columns, depth = (4096, 4096) if size == "full" else (64, 128)
        codes, scale = FORMATS["int8"].make(columns, depth)
        x = torch.randn(rows, depth).to(dtype)
        return cycled(torch._weight_int8pack_mm, x, (codes, scale.view(-1).to(dtype)), size)

    return make


def int4_operator(rows: int) -> CaseMaker:
    """Return a case of PyTorch's operator for int4 with zeros, in bfloat16."""

    def make(size: Size, dtype: torch.dtype) -> Case:
        columns, depth = (4096, 4096) if size == "full" else (64, 128)
        codes, scale, zero = FORMATS["int4, groups of 32, zero"].make(columns, depth)
        numbers = torch.stack([codes & 15, codes >> 4], -1).reshape(columns, depth)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers.int(), 1)
        offset = (8 - zero) * scale  # the operator computes (code - 8) * scale + offset
        both = torch.stack([scale.t(), offset.t()], -1).contiguous().to(dtype)

        def program(x: Tensor, packed: Tensor, both: Tensor) -> Tensor:
            return torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, GROUP, both)

        return cycled(program, torch.randn(rows, depth).to(dtype), (packed, both), size)

    return make


def _normed(x: Tensor, w: Tensor) -> Tensor:
    return F.linear(F.layer_norm(x, x.shape[-1:]), w)


def _biased(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b))


def _gated(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


def _residual(x: Tensor, w: Tensor) -> Tensor:
    y = F.linear(x, w)
    return F.layer_norm(y + x, y.shape[-1:])


def _low_rank(x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return F.linear(x, w) + F.linear(F.linear(x, a), b)


def _squares(x: Tensor, w: Tensor) -> Tensor:
    return F.linear(x, w).square().sum(-1)


def _argmax(x: Tensor, w: Tensor) -> Tensor:
    return F.linear(x, w).argmax(-1)


def _nearest(x: Tensor, centers: Tensor) -> Tensor:
    squares = x.square().sum(-1, keepdim=True) + centers.square().sum(-1)
    return (squares - 2 * F.linear(x, centers)).argmin(-1)


def neighbours(program: Program, rows: int, depth: int, *shapes: tuple[int, ...]) -> CaseMaker:
    """Return a case of a program of `rows` x `depth` numbers and weights of these shapes."""

    def make(size: Size, dtype: torch.dtype) -> Case:
        shrink = 1 if size == "full" else 16
        weights = [torch.randn([-(-n // shrink) for n in s]) / 32 for s in shapes]
        x = torch.randn(-(-rows // shrink), -(-depth // shrink)).to(dtype)
        return cycled(program, x, tuple(w.to(dtype) for w in weights), size)

    return make


NEIGHBOURS = {
    "norm_linear": neighbours(_normed, 256, 1024, (4096, 1024)),
    "linear_gelu": neighbours(_biased, 256, 1024, (4096, 1024), (4096,)),
    "gated_linear": neighbours(_gated, 256, 1024, (2816, 1024), (2816, 1024)),
    "linear_residual_norm": neighbours(_residual, 256, 1024, (1024, 1024)),
    "low_rank": neighbours(_low_rank, 256, 1024, (4096, 1024), (16, 1024), (4096, 16)),
    "product_squares": neighbours(_squares, 2048, 512, (4096, 512)),
    "product_argmax": neighbours(_argmax, 256, 1024, (32000, 1024)),
    "distances_argmin": neighbours(_nearest, 8192, 64, (2048, 64)),
    "one_row_norm_linear": neighbours(_normed, 1, 1024, (4096, 1024)),
    "one_row_gated_linear": neighbours(_gated, 1, 1024, (2816, 1024), (2816, 1024)),
}
EXPERTS = {
    "experts": experts,
    "grouped_experts": grouped_experts,
    "looped_experts": looped_experts,
}
OPERATORS = {"int8": int8_operator, "int4_32": int4_operator}

PRODUCTS = (
    *(
        Workload(
            f"{name}_{rows}_rows{suffix}",
            "products",
            layer(form, rows),
            dtype,
            packed=OPERATORS[name](rows) if suffix and name in OPERATORS else None,
        )
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
    *(
        Workload(f"{name}{suffix}", "products", make, dtype)
        for name, make in (NEIGHBOURS | EXPERTS).items()
        for suffix, dtype in (("", torch.float32), ("_bf16", torch.bfloat16))
    ),
)
