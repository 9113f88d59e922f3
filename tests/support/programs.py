"""Run graphs the way the compiler cuts them: kernels on flat memory, library calls on views."""

from collections.abc import Callable, Mapping

import torch

from tests.support.numbers import TORCH_DTYPES
from tofuse.fusion.lower.coalesce import coalesce
from tofuse.fusion.lower.lower_region import Lowered, lower
from tofuse.ir.dims import evaluate
from tofuse.ir.graph import Graph, Value
from tofuse.ir.kernel import Kernel
from tofuse.ir.region import Partition, Strided
from tofuse.ops.reference import run_graph

Sizes = Mapping[str, int]
Memory = dict[Value, torch.Tensor]
RunKernel = Callable[[Kernel, Mapping[str, torch.Tensor], Sizes], dict[str, torch.Tensor]]


def memory_of(v: Value, place: Strided, sizes: Sizes) -> torch.Tensor:
    """Flat memory that a value fits in."""
    shape = [evaluate(d, sizes) for d in v.shape]
    strides = [evaluate(d, sizes) for d in place.strides]
    span = 1 + sum(s * (n - 1) for s, n in zip(strides, shape, strict=True))
    return torch.zeros(0 if 0 in shape else span, dtype=TORCH_DTYPES[v.dtype])


def placed(v: Value, place: Strided, memory: torch.Tensor, sizes: Sizes) -> torch.Tensor:
    """A value as a view of the memory it lies in."""
    shape = [evaluate(d, sizes) for d in v.shape]
    if 0 in shape:
        return torch.zeros(shape, dtype=memory.dtype)
    strides = [evaluate(d, sizes) for d in place.strides]
    start = memory.storage_offset() + evaluate(place.offset, sizes)
    return memory.as_strided(shape, strides, start)


def put_inputs(part: Partition, inputs: Mapping[Value, torch.Tensor], sizes: Sizes) -> Memory:
    memory: Memory = {}
    for v, x in inputs.items():
        place = part.storage[v]
        memory[v] = memory_of(v, place, sizes)
        placed(v, place, memory[v], sizes).copy_(x)
    return memory


def run_lowered(
    lowered: Lowered, part: Partition, memory: Memory, sizes: Sizes, run: RunKernel
) -> None:
    """Run one kernel and put what it wrote into memory."""
    buffers: dict[str, torch.Tensor] = {}
    roots = dict(zip((b.name for b in lowered.kernel.buffers), lowered.arguments, strict=True))
    for b in lowered.kernel.buffers:
        root = roots[b.name]
        if b.role != "in":
            buffers[b.name] = memory_of(root, part.storage[root], sizes)
        else:
            buffers[b.name] = memory[root]
    for name, written in run(lowered.kernel, buffers, sizes).items():
        memory[roots[name]] = written


def run_partition(
    part: Partition,
    inputs: Mapping[Value, torch.Tensor],
    sizes: Sizes,
    run: RunKernel,
) -> list[torch.Tensor]:
    """The outputs of a partitioned graph, as tensors of their own."""
    memory = put_inputs(part, inputs, sizes)
    for region in part.regions:
        if not region.library:
            lowered = lower(region, part.storage, halves=part.halves)
            lowered = Lowered(coalesce(lowered.kernel), lowered.arguments)
            run_lowered(lowered, part, memory, sizes, run)
            continue
        operands = {
            v: placed(v, part.storage[v], memory[part.storage[v].root], sizes)
            for v in region.inputs
        }
        graph = Graph(region.inputs, region.ops, region.outputs)
        results = run_graph(graph, operands, sizes)
        for v in region.outputs:
            memory[v] = memory_of(v, part.storage[v], sizes)
            placed(v, part.storage[v], memory[v], sizes).copy_(results[v])
    outputs = [v for v in part.graph.outputs if v is not None]
    return [
        placed(v, part.storage[v], memory[part.storage[v].root], sizes).clone() for v in outputs
    ]
