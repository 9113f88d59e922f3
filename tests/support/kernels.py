"""Run kernels on flat buffers: through the LLVM backend, with any schedule and thread count."""

import ctypes
import functools
from collections.abc import Mapping, Sequence

import torch

from tests.support.numbers import TORCH_DTYPES
from tofuse.analysis.alias import memrefs_of
from tofuse.backends.interp.interpreter import run_kernel
from tofuse.backends.llvm.emit import emit
from tofuse.backends.llvm.load import Entry, bind_openmp, bind_vector_library, host_target, load
from tofuse.fusion.lower.coalesce import coalesce
from tofuse.fusion.lower.lower_region import LoweredRegion, lower_region
from tofuse.ir.dims import Dim, evaluate
from tofuse.ir.graph import Graph
from tofuse.ir.kernel import Kernel
from tofuse.ir.kernel.parse import parse_kernel
from tofuse.ir.nest import Nest
from tofuse.ir.region import Region
from tofuse.ir.schedule import Schedule, Target, parse_schedule
from tofuse.ops.check_kernel import check_kernel
from tofuse.runtime.launch import find_openmp, find_vector_library
from tofuse.schedule.build_nest import build_nest
from tofuse.schedule.choose_schedule import choose_schedule

Buffers = dict[str, torch.Tensor]
GUARD = 64  # bytes of a pattern around every output, which nothing may write to
PATTERN = 0xA5
TARGET = Target(16, 2)


def whole(graph: Graph) -> LoweredRegion:
    """All ops of a graph as one kernel, axes merged."""
    outputs = tuple(dict.fromkeys(v for v in graph.outputs if v is not None))
    region = Region("k", graph.ops, outputs)
    lowered = lower_region(region, memrefs_of(graph))
    return LoweredRegion(coalesce(lowered.kernel), lowered.arguments)


def kernel(text: str) -> Kernel:
    """A kernel from its text, verified."""
    parsed = parse_kernel(text)
    check_kernel(parsed)
    return parsed


def schedules(kernel: Kernel, *texts: str, lanes: Sequence[int] = (1, 4, 16)) -> list[Schedule]:
    """What the heuristics choose for several machines, and schedules given as text."""
    chosen = [choose_schedule(kernel, Target(n, t)) for n in lanes for t in (1, 3)]
    return list(dict.fromkeys([*chosen, *map(parse_schedule, texts)]))


def fresh_outputs(kernel: Kernel, like: Mapping[str, torch.Tensor]) -> Buffers:
    """The buffers, outputs filled with a pattern anew."""
    roles = {b.name: b.role for b in kernel.buffers}
    return {n: _padded(t) if roles[n] != "in" else t for n, t in like.items()}


def judge(
    kernel: Kernel, buffers: Mapping[str, torch.Tensor], sizes: Mapping[str, int], *, precise=False
) -> Buffers:
    """The outputs the interpreter gives."""
    own = fresh_outputs(kernel, buffers)
    run_kernel(kernel, own, sizes, precise=precise)
    return {b.name: own[b.name] for b in kernel.buffers if b.role != "in"}


def run_llvm(
    kernel: Kernel,
    schedule: Schedule,
    buffers: Mapping[str, torch.Tensor],
    sizes: Mapping[str, int],
    threads: int = 1,
    contract: bool = True,
) -> Buffers:
    """The outputs that machine code gives; IndexError where it reports one."""
    return run_nest(build_nest(kernel, schedule), buffers, sizes, threads, contract)


def run_nest(
    nest: Nest,
    buffers: Mapping[str, torch.Tensor],
    sizes: Mapping[str, int],
    threads: int = 1,
    contract: bool = True,
    shared: tuple[str, str] | None = None,
) -> Buffers:
    """The same for a nest; `shared` names a buffer read and one written that are one memory."""
    kernel = nest.kernel
    own = fresh_outputs(kernel, buffers)
    if shared is not None:
        source, out = shared
        own[source] = own[out].copy_(own[source])
    entry = compiled(emit(nest, contract=contract, native=host_target(1).native_lanes), kernel.name)
    block = evaluate(nest.block_bytes, sizes)
    space = torch.full((block * threads + 128,), PATTERN, dtype=torch.uint8)
    base = -(-space.data_ptr() // 64) * 64
    words = [own[b.name].data_ptr() for b in kernel.buffers] + [sizes[s] for s in kernel.symbols]
    context = (ctypes.c_int64 * (len(words) + 3))(*words, base, threads, 0)
    if entry(context):
        raise IndexError("index out of range")
    assert bool((space[base - space.data_ptr() + block * threads :] == PATTERN).all()), "workspace"
    outputs = {b.name: own[b.name] for b in kernel.buffers if b.role != "in"}
    for name, t in outputs.items():
        assert _untouched(t), f"{name} is written beside its elements"
    return outputs


@functools.cache
def compiled(text: str, name: str) -> Entry:
    bind_openmp(find_openmp())
    bind_vector_library(find_vector_library())
    (entry,) = load(text, [name])
    return entry


def filled(kernel: Kernel, lengths: Mapping[str, int], generator: torch.Generator) -> Buffers:
    """Buffers of so many elements: inputs of ordinary numbers, outputs not yet written."""
    return {
        b.name: plain(lengths[b.name], TORCH_DTYPES[b.dtype], generator) for b in kernel.buffers
    }


def plain(length: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Ordinary numbers: normal floats, small integers, coin flips."""
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
    """Memory of the same size with a pattern in it and around it."""
    nbytes = t.numel() * t.itemsize
    room = torch.full((nbytes + 2 * GUARD,), PATTERN, dtype=torch.uint8)
    if t.dtype is torch.bool:
        room[GUARD : GUARD + nbytes] = 0
    return room[GUARD : GUARD + nbytes].view(t.dtype)


def _untouched(t: torch.Tensor) -> bool:
    room = torch.empty(0, dtype=torch.uint8).set_(t.untyped_storage())
    return bool((room[:GUARD] == PATTERN).all()) and bool((room[-GUARD:] == PATTERN).all())
