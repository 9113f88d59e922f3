"""Autotune kernels on a GPU: compile their tilings, time them, and store the fastest on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from tofuse.backends.triton.load import triton_version
from tofuse.cost.memory_traffic import region_bytes
from tofuse.cost.thresholds import GPU_TIMING_S
from tofuse.cost.tile_cost import tile_program_us
from tofuse.disk_store import Store, store_of
from tofuse.driver.autotune import (
    ATEN,
    FUSED,
    SPLIT,
    BuildProgram,
    Candidate,
    Choice,
    TimeCalls,
    best_cut,
    build_candidate,
    is_static,
    isolate_region,
    measure_choice,
    region_text,
    stored_choice,
    with_progress,
)
from tofuse.driver.codegen import (
    ChosenSchedule,
    CodegenContext,
    GeneratedKernel,
    generate_kernels,
    gpu_target,
    lower_for_gpu,
)
from tofuse.driver.oracle import machine_of_gpu
from tofuse.driver.prune_tilings import prune_tilings
from tofuse.driver.verify_kernels import describe_mismatch, tolerance_of
from tofuse.ir.dims import size_hint
from tofuse.ir.graph import device_of
from tofuse.ir.kernel import Kernel
from tofuse.ir.tile import TileProgram
from tofuse.ir.types import TensorType
from tofuse.region import Region
from tofuse.runtime.cuda import device_index, device_name, synchronize
from tofuse.runtime.gpu_driver import gpu_driver
from tofuse.runtime.gpu_timing import interleaved_gpu_us
from tofuse.runtime.sample_inputs import sample_tensors
from tofuse.runtime.timing import TimedCall, real_tensors
from tofuse.schedule.tiling_variants import tiling_variants
from tofuse.torch_internals.trees import tensor_leaves

CAPTURED = "tune='measure' times nothing while a CUDA graph is captured"
NO_MEMORY = "the GPU has no memory for its candidates"


def measured_gpu_choices(
    context: CodegenContext, build_program: BuildProgram
) -> dict[Region, Choice]:
    """Return the fastest candidate for each static region on a GPU that is no library call.

    Regions that share a kernel have one choice. Choices stored on disk are not measured again.
    """
    part = context.partition
    kernels = [r for r in part.regions if not r.library and device_of(r.ops) != "cpu"]
    lowered, _ = lower_for_gpu([r for r in kernels if is_static(r)], context)
    sharing: dict[tuple[Kernel, str], list[Region]] = {}
    for x in lowered:
        sharing.setdefault((x.kernel, device_of(x.region.ops)), []).append(x.region)
    if sharing and gpu_driver().is_capturing():
        return {r: Choice(notes=(CAPTURED,)) for regions in sharing.values() for r in regions}
    memrefs = part.aliases.memrefs
    choices: dict[Region, Choice] = {}
    with real_tensors():
        for regions in with_progress(list(sharing.values())):
            largest = max(regions, key=lambda r: size_hint(region_bytes(r, memrefs)))
            isolated = replace(context, partition=isolate_region(largest, part))
            try:
                choice = _measured_choice(isolated, build_program)
            except torch.OutOfMemoryError:
                choice = Choice(notes=(f"{largest.name} is not tuned: {NO_MEMORY}",))
            if choice is None:
                continue
            whole = choice.kind == FUSED  # other choices are for tensors of these sizes
            same = (r for r in regions if whole or _types(r) == _types(largest))
            choices |= dict.fromkeys(same, choice)
    return choices


def _types(region: Region) -> list[TensorType]:
    return [v.type for v in (*region.inputs, *region.outputs)]


def _measured_choice(isolated: CodegenContext, build_program: BuildProgram) -> Choice | None:
    """Return the fastest candidate for a partition of one region; None if it has no kernel."""
    (region,) = isolated.partition.regions
    default = _generate(isolated, None)
    if default is None or not isinstance(default.nest, TileProgram):
        return None
    device = device_of(region.ops)
    target = gpu_target(device)
    variants = {
        Choice(FUSED, program.choice): program for program in tiling_variants(default.nest, target)
    }
    others = [Choice(ATEN)]
    cut = best_cut(region, isolated, partial(_predicted_us, isolated))
    if cut:
        others.insert(0, Choice(SPLIT, None, cut))
    config, store = isolated.config, store_of(isolated.config)
    text = f"{default.source}\n{default.nest.choice!r}\n{region_text(isolated)}"
    key = (*gpu_key(device), config.precision, *config.executors, text)
    stored = stored_choice([Choice(), *variants, *others], key, store)
    if stored is not None:
        return stored
    generated = {c: _generate(isolated, c.schedule) for c in variants}
    made = {c: g for c, g in generated.items() if g is not None}
    kept = set(prune_tilings(default, list(made.values()), machine_of_gpu(device)))
    choices = [Choice(), *(c for c, g in made.items() if g in kept), *others]
    comparison = _Comparison(isolated, build_program)
    candidates = [(c, partial(comparison.build, c)) for c in choices]
    chosen = measure_choice(candidates, key, store, _clock(device))
    return replace(chosen, notes=tuple(comparison.notes))


def choose_on_gpu(
    candidates: Sequence[Candidate], key: Sequence[str], store: Store, device: str
) -> Choice:
    """Return the fastest candidate on a GPU; the stored one if they were timed before."""
    key = (*gpu_key(device), *key)
    stored = stored_choice([choice for choice, _ in candidates], key, store)
    return stored or measure_choice(candidates, key, store, _clock(device))


def gpu_key(device: str) -> tuple[str, ...]:
    """Return what times on a GPU depend on: its name and size, and the releases of libraries."""
    return repr(gpu_target(device)), device_name(device), triton_version(), torch.__version__


def _clock(device: str) -> TimeCalls:
    return partial(interleaved_gpu_us, device=device_index(device), seconds=GPU_TIMING_S)


def _generate(context: CodegenContext, schedule: ChosenSchedule) -> GeneratedKernel | None:
    """Return the kernel of a partition of one region; None if it has none."""
    generated, _ = generate_kernels({context.partition.regions[0]: schedule}, context)
    return generated[0] if generated and generated[0].error is None else None


def _predicted_us(context: CodegenContext, region: Region) -> float | None:
    generated, _ = generate_kernels({region: None}, context)
    if not generated or not isinstance(program := generated[0].nest, TileProgram):
        return None
    return tile_program_us(program, machine_of_gpu(device_of(region.ops)))


@dataclass(eq=False)
class _Comparison:
    """Builds candidates, and leaves out those whose results differ from the first one's.

    PyTorch's operators are exempt: in half precision they round after each.
    """

    context: CodegenContext
    build_program: BuildProgram
    notes: list[str] = field(default_factory=list)
    first: list[torch.Tensor] | None = None

    def __post_init__(self) -> None:
        graph = self.context.partition.graph
        self.inputs = sample_tensors(graph.inputs)
        self.tolerance = tolerance_of(graph.values())

    def build(self, choice: Choice) -> TimedCall | None:
        call = build_candidate(choice, self.context, self.build_program, self.inputs)
        if call is None or choice.kind == ATEN:
            return call
        reason = self._mismatch(call)
        if reason is not None:
            name = self.context.partition.regions[0].name
            self.notes.append(f"{name}: the candidate {choice.name} is left out: {reason}")
            return None
        return call

    def _mismatch(self, call: Callable[[], object]) -> str | None:
        """Return how the results of a call differ from those of the first one."""
        try:
            found = tensor_leaves(call())
            synchronize()
        except Exception as error:  # of a launch
            return f"{type(error).__name__}: {error}"
        if self.first is None:
            self.first = found
            return None
        for got, want in zip(found, self.first, strict=True):
            reason = describe_mismatch(got, want, want, self.tolerance)
            if reason is not None:
                return reason
        return None
