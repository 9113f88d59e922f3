"""Compile candidates of a GPU kernel, and leave out those that spill or keep the GPU idle."""

from __future__ import annotations

from collections.abc import Sequence

from tofuse.backends.triton.load import TritonModule
from tofuse.cost.occupancy import instances_per_multiprocessor
from tofuse.cost.thresholds import MIN_TUNED_WARPS
from tofuse.driver.codegen import GeneratedKernel
from tofuse.driver.load_kernels import aligned_launches, compile_for_gpu, compiling_threads
from tofuse.errors import CompileError
from tofuse.ir.tile import GpuTarget, TileProgram


def prune_tilings(
    default: GeneratedKernel, variants: Sequence[GeneratedKernel], target: GpuTarget
) -> list[GeneratedKernel]:
    """Return the variants of a kernel of constant sizes that are worth timing; threads compile.

    A variant is not if it does not compile, has more stack than the default, which means spills,
    or if a launch holds fewer warps on a multiprocessor than `MIN_TUNED_WARPS`, and all launches of
    the default hold more.
    """
    modules = compile_for_gpu([default, *variants], compiling_threads())
    limit = _usage(default, modules.get(_program(default)), target)
    if limit is None:
        return []
    kept = []
    for variant in variants:
        used = _usage(variant, modules.get(_program(variant)), target)
        if used is None or used[0] > limit[0]:
            continue
        if used[1] >= min(MIN_TUNED_WARPS, limit[1]):
            kept.append(variant)
    return kept


def _program(g: GeneratedKernel) -> TileProgram:
    assert isinstance(g.nest, TileProgram)
    return g.nest


def _usage(
    g: GeneratedKernel, module: TritonModule | None, target: GpuTarget
) -> tuple[int, int] | None:
    """Return the most stack of a launch, and the fewest warps that a multiprocessor holds.

    A launch with fewer instances than the GPU holds does not count. None if a launch does not
    compile.
    """
    if module is None:
        return None
    program = _program(g)
    stack, least = 0, MIN_TUNED_WARPS
    try:
        for k, aligned in aligned_launches(module, program):
            binary, usage = module.binary(k, aligned), module.register_usage(k, aligned)
            warps = binary.threads // 32
            fit = instances_per_multiprocessor(target, usage.registers, binary.shared, warps)
            stack = max(stack, usage.stack)
            instances = program.nests[k].instance_count({})
            if instances > fit * target.multiprocessors:
                least = min(least, fit * warps)
    except CompileError:
        return None
    return stack, least
