"""Compile the launches of tile programs with Triton."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from tofuse.backends.cuda.triton.emit import launch_parameters
from tofuse.backends.cuda.triton.group import SHARED_PARAMETERS, call_parameters
from tofuse.backends.cuda.triton.load import LaunchSpec, TritonModule
from tofuse.backends.target import EmittedKernel
from tofuse.backends.thread_map import thread_map
from tofuse.cost.thresholds import MAX_GROUPED_CALLS
from tofuse.errors import CompileError
from tofuse.ir.schedule import ScheduledKernel
from tofuse.ir.tile import TileProgram

# of 8 bytes, in CUDA 12.1 or newer from capability 7.0 on: CUDA C++ Programming Guide, "__global__
# Function Parameters"; Triton adds two
MAX_PARAMETERS = 32764 // 8 - 2


def tiles_of(scheduled: ScheduledKernel) -> TileProgram:
    """Return a scheduled kernel of a GPU."""
    assert isinstance(scheduled, TileProgram)
    return scheduled


def compile_programs(
    emitted: Sequence[EmittedKernel], capability: int, threads: int
) -> Mapping[TileProgram, TritonModule]:
    """Return the modules of GPU kernels, with code for aligned tensors; threads compile.

    A text that does not compile has no module, or one without that code.
    """
    modules: dict[TileProgram, TritonModule] = {}
    tasks: list[tuple[TritonModule, int, tuple[bool, ...]]] = []
    for x in emitted:
        program = tiles_of(x.scheduled)
        if program in modules:
            continue
        with suppress(CompileError):
            module = modules[program] = triton_module(x, capability)
            tasks += [(module, k, aligned) for k, aligned in aligned_launches(module, program)]

    def compile_launch(task: tuple[TritonModule, int, tuple[bool, ...]]) -> None:
        module, k, aligned = task
        with suppress(CompileError):  # it is raised again when the launcher asks for it
            module.binary(k, aligned)

    thread_map(compile_launch, tasks, threads)
    return modules


def aligned_launches(
    module: TritonModule, program: TileProgram
) -> list[tuple[int, tuple[bool, ...]]]:
    """Return each launch, with which of its parameters are multiples of 16 for aligned tensors."""
    names = ([name for name, _ in spec.parameters] for spec in module.specs)
    return [(k, program.call.aligned(own)) for k, own in enumerate(names)]


def triton_module(emitted: EmittedKernel, capability: int) -> TritonModule:
    """Return the module of a program's text; raise CompileError."""
    program = tiles_of(emitted.scheduled)
    specs = [
        LaunchSpec(tuple(launch_parameters(nest)), nest.tiling.warps) for nest in program.nests
    ]
    return TritonModule(emitted.text, specs, capability)


def group_limit(program: TileProgram) -> int:
    """Return how many calls of a GPU kernel can be one launch: their parameters are limited."""
    symbols = program.kernel.symbols
    most = max(len(call_parameters(launch_parameters(n), symbols)) for n in program.nests)
    return min(MAX_GROUPED_CALLS, (MAX_PARAMETERS - SHARED_PARAMETERS) // max(1, most))
