"""Compile candidates of a GPU kernel, and leave out those that spill or keep the GPU idle."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from tofuse.backends.cuda.cost.gpu_machine import GpuMachine
from tofuse.backends.cuda.load_tiles import aligned_launches, compile_programs, tiles_of
from tofuse.backends.cuda.triton.load import TritonModule
from tofuse.backends.target import EmittedKernel
from tofuse.cost.thresholds import MIN_TUNED_WARPS
from tofuse.errors import CompileError


def prune_tilings(
    default: EmittedKernel, variants: Sequence[EmittedKernel], gpu: GpuMachine, threads: int
) -> list[EmittedKernel]:
    """Return the variants of a kernel of constant sizes that are worth timing; threads compile.

    Drop a variant that does not compile, or that has more stack than the default. Also drop one
    with a launch of fewer than `MIN_TUNED_WARPS` warps on a multiprocessor, if the default has
    more.
    """
    modules = compile_programs([default, *variants], gpu.capability, threads)
    limit = _usage(default, modules.get(tiles_of(default.scheduled)), gpu)
    if limit is None:
        return []
    kept = []
    for variant in variants:
        used = _usage(variant, modules.get(tiles_of(variant.scheduled)), gpu)
        if used is None or used[0] > limit[0]:
            continue
        if used[1] >= min(MIN_TUNED_WARPS, limit[1]):
            kept.append(variant)
    return kept


def _usage(
    x: EmittedKernel, module: TritonModule | None, gpu: GpuMachine
) -> tuple[int, int] | None:
    """Return the most stack of a launch, and the fewest warps that a multiprocessor holds.

    A launch with fewer instances than the GPU holds does not count, nor does one whose registers
    cannot be read. None if a launch does not compile.
    """
    if module is None:
        return None
    stack, least = 0, MIN_TUNED_WARPS
    program = tiles_of(x.scheduled)
    for (k, aligned), nest in zip(aligned_launches(module, program), program.nests, strict=True):
        try:
            binary = module.binary(k, aligned)
        except CompileError:
            return None
        with suppress(CompileError):  # Triton lacks the tool
            usage, warps = module.register_usage(k, aligned), binary.threads // 32
            fit = gpu.instances(usage.registers, binary.shared, warps)
            stack = max(stack, usage.stack)
            if nest.instance_count({}) > fit * gpu.multiprocessors:
                least = min(least, fit * warps)
    return stack, least
