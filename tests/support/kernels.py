"""Run kernels on flat buffers, with the LLVM backend or the interpreter."""

import ctypes
import functools
from collections.abc import Mapping, Sequence

import torch

from tests.support.numbers import TORCH_DTYPES
from tofuse.analysis.alias import AliasAnalysis
from tofuse.backends.cpu.llvm.emit import EmitOptions, emit
from tofuse.backends.cpu.llvm.load import CODE, Entry, host_target
from tofuse.backends.cpu.runtime.launch import find_openmp, find_vector_library
from tofuse.backends.cpu.schedule.build_nest import build_nest
from tofuse.backends.cpu.schedule.choose_schedule import choose_schedule
from tofuse.backends.interp.interpreter import run_kernel
from tofuse.fusion.lower.coalesce import coalesce
from tofuse.fusion.lower.lower_region import LoweredRegion, lower_region
from tofuse.ir.dims import Dim, evaluate
from tofuse.ir.graph import Graph
from tofuse.ir.kernel import Kernel
from tofuse.ir.nest import Nest
from tofuse.ir.parse_kernel import parse_kernel
from tofuse.ir.parse_schedule import parse_schedule
from tofuse.ir.region import Region
from tofuse.ir.schedule import Schedule, Target
from tofuse.ops.check_kernel import check_kernel

Buffers = dict[str, torch.Tensor]
GUARD = 64  # bytes around every output that must not be written
PATTERN = 0xA5
TARGET = Target(16, 2)


def lower_graph(graph: Graph) -> LoweredRegion:
    """Lower all ops of a graph to one kernel, with collapsed axes."""
    outputs = tuple(dict.fromkeys(v for v in graph.outputs if v is not None))
    region = Region("k", graph.ops, outputs)
    lowered = lower_region(region, AliasAnalysis(graph).memrefs)
    return LoweredRegion(coalesce(lowered.kernel), lowered.arguments)


def kernel(text: str) -> Kernel:
    """Parse and verify a kernel."""
    parsed = parse_kernel(text)
    check_kernel(parsed)
    return parsed


def schedules(kernel: Kernel, *texts: str, lanes: Sequence[int] = (1, 4, 16)) -> list[Schedule]:
    """Return the schedules that are chosen for several targets, and schedules given as text."""
    chosen = [choose_schedule(kernel, Target(n, t)) for n in lanes for t in (1, 3)]
    return list(dict.fromkeys([*chosen, *map(parse_schedule, texts)]))


def fresh_outputs(kernel: Kernel, like: Mapping[str, torch.Tensor]) -> Buffers:
    """Return the buffers with new outputs, which are filled with a pattern."""
    roles = {b.name: b.role for b in kernel.buffers}
    return {n: t if roles[n] in ("in", "host") else _padded(t) for n, t in like.items()}


def run_interpreter(
    kernel: Kernel, buffers: Mapping[str, torch.Tensor], sizes: Mapping[str, int], *, precise=False
) -> Buffers:
    """Return the outputs of the interpreter."""
    own = fresh_outputs(kernel, buffers)
    run_kernel(kernel, own, sizes, precise=precise)
    return {b.name: own[b.name] for b in kernel.buffers if b.role not in ("in", "host")}


def run_llvm(
    kernel: Kernel,
    schedule: Schedule,
    buffers: Mapping[str, torch.Tensor],
    sizes: Mapping[str, int],
    threads: int = 1,
    contract: bool = True,
) -> Buffers:
    """Return the outputs of the machine code. Raises IndexError if it reports one."""
    return run_nest(build_nest(kernel, schedule), buffers, sizes, threads, contract)


def run_nest(
    nest: Nest,
    buffers: Mapping[str, torch.Tensor],
    sizes: Mapping[str, int],
    threads: int = 1,
    contract: bool = True,
    shared: tuple[str, str] | None = None,
) -> Buffers:
    """Return the outputs of a nest. `shared` names an input and an output in the same memory."""
    options = EmitOptions(contract=contract, native=host_target(1).native_lanes)
    text = emit(nest, options)
    return run_text(text, nest.kernel, nest.block_bytes, buffers, sizes, threads, shared)


def run_text(
    text: str,
    kernel: Kernel,
    block_bytes: Dim,
    buffers: Mapping[str, torch.Tensor],
    sizes: Mapping[str, int],
    threads: int = 1,
    shared: tuple[str, str] | None = None,
) -> Buffers:
    """Return the outputs of a module for a kernel that has a workspace of so many bytes a thread.

    Outputs are surrounded by guards. `shared` is that of `run_nest`.
    """
    own = fresh_outputs(kernel, buffers)
    if shared is not None:
        source, out = shared
        own[source] = own[out].copy_(own[source])
    entry = compiled(text, kernel.name)
    block = evaluate(block_bytes, sizes)
    space = torch.full((block * threads + 128,), PATTERN, dtype=torch.uint8)
    base = -(-space.data_ptr() // 64) * 64
    words = [own[b.name].data_ptr() for b in kernel.buffers] + [sizes[s] for s in kernel.symbols]
    context = (ctypes.c_int64 * (len(words) + 3))(*words, base, threads, 0)
    if entry(context):
        raise IndexError("index out of range")
    assert bool((space[base - space.data_ptr() + block * threads :] == PATTERN).all()), "workspace"
    outputs = {b.name: own[b.name] for b in kernel.buffers if b.role != "in"}
    for name, t in outputs.items():
        assert _guards_intact(t), f"{name} is written out of bounds"
    return outputs


@functools.cache
def compiled(text: str, name: str) -> Entry:
    CODE.bind_openmp(find_openmp())
    CODE.bind_vector_library(find_vector_library())
    (entry,) = CODE.load(text, [name])
    return entry


def random_buffers(
    kernel: Kernel, lengths: Mapping[str, int], generator: torch.Generator
) -> Buffers:
    """Return buffers of the given lengths with ordinary numbers."""
    return {
        b.name: random_tensor(lengths[b.name], TORCH_DTYPES[b.dtype], generator)
        for b in kernel.buffers
    }


def random_tensor(length: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Return normally distributed floats, small integers, or random booleans."""
    if dtype.is_floating_point:
        return torch.randn(length, generator=generator, dtype=torch.float64).to(dtype)
    if dtype is torch.bool:
        return torch.randint(0, 2, (length,), generator=generator).bool()
    low = 0 if dtype is torch.uint8 else -9
    return torch.randint(low, 10, (length,), generator=generator).to(dtype)


def numel(shape: Sequence[Dim], sizes: Mapping[str, int]) -> int:
    total = 1
    for d in shape:
        total *= evaluate(d, sizes)
    return total


def _padded(t: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same size, with a pattern in it and in the guards around it."""
    nbytes = t.numel() * t.itemsize
    block = torch.full((nbytes + 2 * GUARD,), PATTERN, dtype=torch.uint8)
    if t.dtype is torch.bool:
        block[GUARD : GUARD + nbytes] = 0
    return block[GUARD : GUARD + nbytes].view(t.dtype)


def _guards_intact(t: torch.Tensor) -> bool:
    block = torch.empty(0, dtype=torch.uint8).set_(t.untyped_storage())
    return bool((block[:GUARD] == PATTERN).all()) and bool((block[-GUARD:] == PATTERN).all())
