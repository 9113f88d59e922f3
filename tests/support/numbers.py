"""Special values as inputs of graphs, and bitwise comparison."""

import torch

from tofuse.ir.dims import evaluate, symbols_of
from tofuse.ir.graph import Graph, Value
from tofuse.ir.types import DType

TORCH_DTYPES = {
    DType.F64: torch.float64,
    DType.F32: torch.float32,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.F8E4M3: torch.float8_e4m3fn,
    DType.F8E5M2: torch.float8_e5m2,
    DType.I64: torch.int64,
    DType.I32: torch.int32,
    DType.I16: torch.int16,
    DType.I8: torch.int8,
    DType.U8: torch.uint8,
    DType.BOOL: torch.bool,
}

SIZES = (3, 2, 5, 4)


def sizes_of(graph: Graph) -> dict[str, int]:
    """Return a size for every symbol of a graph, different ones first."""
    names = sorted({s for v in graph.values() for d in v.shape for s in symbols_of(d)})
    return {name: SIZES[k % len(SIZES)] for k, name in enumerate(names)}


def special_inputs(graph: Graph, generator: torch.Generator) -> dict[Value, torch.Tensor]:
    """Return inputs with both zeros, infinities, nan, subnormals, extremes and ordinary numbers."""
    return {v: _special(v, sizes_of(graph), _index_limit(graph), generator) for v in graph.inputs}


def plain_inputs(graph: Graph, generator: torch.Generator) -> dict[Value, torch.Tensor]:
    """Return inputs of ordinary numbers."""
    sizes, limit = sizes_of(graph), _index_limit(graph)
    inputs: dict[Value, torch.Tensor] = {}
    for v in graph.inputs:
        if v.dtype.is_float:
            shape = [evaluate(d, sizes) for d in v.shape]
            x = torch.randn(shape, generator=generator, dtype=torch.float64)
            inputs[v] = x.to(TORCH_DTYPES[v.dtype])
        else:
            inputs[v] = _special(v, sizes, limit, generator)
    return inputs


def assert_same_bits(a: torch.Tensor, b: torch.Tensor) -> None:
    """Assert bitwise equality, except for the payload of nan."""
    assert (a.shape, a.dtype) == (b.shape, b.dtype)
    if a.is_floating_point():
        assert torch.equal(a.isnan(), b.isnan()), f"nan differs:\n{a}\n{b}"
        a, b = a.nan_to_num(nan=1.5, posinf=None, neginf=None), b.nan_to_num(nan=1.5)
        assert torch.equal(a.signbit(), b.signbit()), f"signs differ:\n{a}\n{b}"
    assert torch.equal(a, b), f"numbers differ:\n{a}\n{b}"


def _index_limit(graph: Graph) -> int | None:
    """Return the bound of integer inputs, which may be indices; None if no op reads an index."""
    extents = [
        op.inputs[0].shape[op.ints("dims").index(-1)] for op in graph.ops if op.kind == "take"
    ]
    scatters = (op for op in graph.ops if op.kind == "scatter_reduce")
    extents += (op.result.shape[op.int("dim")] for op in scatters)
    return min(evaluate(e, sizes_of(graph)) for e in extents) if extents else None


def _special(
    v: Value, sizes: dict[str, int], limit: int | None, generator: torch.Generator
) -> torch.Tensor:
    shape, dtype = [evaluate(d, sizes) for d in v.shape], TORCH_DTYPES[v.dtype]
    if v.dtype.is_int and limit is not None:
        return torch.randint(0, limit, shape, generator=generator, dtype=dtype)
    if v.dtype is DType.BOOL:
        pool = torch.tensor([True, False])
    elif v.dtype.is_int:
        least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        pool = torch.tensor([0, 1, 2, 3, 7, most, most - 1, least, least + 1], dtype=dtype)
    else:
        pool = _special_floats(dtype)
    picks = torch.randint(0, len(pool), shape, generator=generator)
    return pool[picks]


def _special_floats(dtype: torch.dtype) -> torch.Tensor:
    info, inf = torch.finfo(dtype), float("inf")
    positive = [0.0, inf, info.max, info.tiny, info.smallest_normal / 2, 1.0, 0.1, 2.5, 3.7e4]
    numbers = torch.tensor([*positive, *(-x for x in positive), float("nan")], dtype=torch.float64)
    return numbers.to(dtype)
