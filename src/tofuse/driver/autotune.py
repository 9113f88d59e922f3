"""Autotune regions: time the candidates for each region and store the fastest on disk."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import torch
from rich.console import Console
from rich.progress import track

from tofuse.backends.cuda.runtime.cuda import synchronize
from tofuse.backends.launcher import TimedCall
from tofuse.backends.target import Backend, ChosenSchedule
from tofuse.config import Config
from tofuse.cost.machine import Machine
from tofuse.cost.machine_source import measured_machine
from tofuse.cost.memory_traffic import region_bytes
from tofuse.cost.thresholds import MAX_TUNED_CUTS_PER_REGION
from tofuse.disk_store import store_of
from tofuse.driver.choice import ATEN, FUSED, SPLIT, Choice, measure_choice, stored_choice
from tofuse.driver.codegen import (
    CodegenContext,
    GeneratedKernel,
    generate_kernels,
    schedule_kernels,
)
from tofuse.driver.isolate_region import is_static, isolate_region, without_locations
from tofuse.driver.link import LinkedProgram
from tofuse.driver.load_kernels import compiling_threads
from tofuse.driver.verify_kernels import describe_mismatch, tolerance_of
from tofuse.errors import TofuseError
from tofuse.fusion.partition.region_split import cut_positions, split_region
from tofuse.graph_partition import Partition
from tofuse.ir.dims import size_hint
from tofuse.ir.graph import show_graph
from tofuse.ir.region import Region
from tofuse.ir.schedule import ScheduledKernel
from tofuse.ir.types import TensorType
from tofuse.plan.signature import CallSignature
from tofuse.runtime.sample_inputs import sample_tensors
from tofuse.runtime.timing import real_tensors
from tofuse.torch_internals.trees import tensor_leaves

NO_MEMORY = "there is no memory for its candidates"
T = TypeVar("T")


BuildProgram = Callable[[Partition, CallSignature, Mapping[Region, Choice], Config], LinkedProgram]


def measured_choices(context: CodegenContext, build_program: BuildProgram) -> dict[Region, Choice]:
    """Return the fastest candidate for each static region that is no library call.

    Regions that share a kernel have one choice. Choices stored on disk are not measured again.
    """
    part = context.partition
    kernels = [r for r in part.regions if not r.library and is_static(r)]
    choices: dict[Region, Choice] = {}
    with real_tensors():
        for backend, regions in context.oracle.by_backend(kernels).items():
            choices |= _choices_of(backend, regions, context, build_program)
    return choices


def _choices_of(
    backend: Backend,
    regions: Sequence[Region],
    context: CodegenContext,
    build_program: BuildProgram,
) -> dict[Region, Choice]:
    """Return the choices for the regions of one backend."""
    scheduled, _ = schedule_kernels(dict.fromkeys(regions), backend, context)
    sharing: dict[ScheduledKernel, list[Region]] = {}
    for s in scheduled:
        sharing.setdefault(s.scheduled, []).append(s.region)
    obstacle = backend.timing_obstacle() if sharing else None
    if obstacle is not None:
        return dict.fromkeys(regions, Choice(notes=(obstacle,)))
    part, choices = context.partition, dict[Region, Choice]()
    for equal in _with_progress(list(sharing.values())):
        largest = max(equal, key=lambda r: size_hint(region_bytes(r, part.aliases.memrefs)))
        isolated = replace(context, partition=isolate_region(largest, part))
        try:
            choice = _measured_choice(isolated, backend, build_program)
        except torch.OutOfMemoryError:
            choice = Choice(notes=(f"{largest.name} is not tuned: {NO_MEMORY}",))
        if choice is None:
            continue
        whole = choice.kind == FUSED  # other choices are for tensors of these sizes
        same = (r for r in equal if whole or _types(r) == _types(largest))
        choices |= dict.fromkeys(same, choice)
    return choices


def _types(region: Region) -> list[TensorType]:
    return [v.type for v in (*region.inputs, *region.outputs)]


def _measured_choice(
    isolated: CodegenContext, backend: Backend, build_program: BuildProgram
) -> Choice | None:
    """Return the fastest candidate for a partition of one region; None if it has no kernel."""
    (region,) = isolated.partition.regions
    default = _generate(isolated, None)
    if default is None:
        return None
    config = isolated.config
    machine = measured_machine(isolated.oracle.target, config)
    schedules = backend.variants(default.scheduled, machine)
    variants = [Choice(FUSED, schedule) for schedule in schedules]
    others = [Choice(ATEN)]
    cut = best_cut(region, isolated, backend, machine)
    if cut:
        others.insert(0, Choice(SPLIT, None, cut))
    store = store_of(config)
    text = f"{default.source}\n{default.scheduled!r}".replace(region.name, "kernel")
    options = torch.__version__, config.precision, *config.executors
    graph = without_locations(replace(isolated.partition.graph, name="region"))
    key = (*backend.timing_key(), *options, text, show_graph(graph))
    stored = stored_choice([Choice(), *variants, *others], key, store)
    if stored is not None:
        return stored
    generated = {c: _generate(isolated, c.schedule) for c in variants}
    made = {c: g.emitted for c, g in generated.items() if g is not None}
    pruned = backend.prune(default.emitted, list(made.values()), compiling_threads())
    kept = {x.scheduled for x in pruned}
    choices = [Choice(), *(c for c, x in made.items() if x.scheduled in kept), *others]
    comparison = _Comparison(isolated, build_program)
    candidates = [(c, partial(comparison.build, c)) for c in choices]
    chosen = measure_choice(candidates, key, store, backend.time_calls)
    return replace(chosen, notes=tuple(comparison.notes))


def _generate(context: CodegenContext, schedule: ChosenSchedule) -> GeneratedKernel | None:
    """Return the kernel of a partition of one region; None if it has none."""
    generated, _ = generate_kernels({context.partition.regions[0]: schedule}, context)
    return generated[0] if generated and generated[0].error is None else None


def _predicted_us(
    context: CodegenContext, backend: Backend, machine: Machine, region: Region
) -> float | None:
    """Return the predicted microseconds of a region's kernel; None if it has none."""
    scheduled, _ = schedule_kernels({region: None}, backend, context)
    nbytes = region_bytes(region, context.partition.aliases.memrefs)
    return backend.predicted_us(scheduled[0].call, nbytes, machine) if scheduled else None


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
        part, config = self.context.partition, self.context.config
        (region,) = part.regions
        try:
            split, choices = apply_choices(part, {region: choice})
            call = timed_call(split, choices, config, self.build_program, self.inputs)
        except TofuseError:
            return None
        reason = None if choice.kind == ATEN else self._mismatch(call)
        if reason is not None:
            self.notes.append(f"{region.name}: the candidate {choice.name} is left out: {reason}")
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
            if torch.equal(got, want):
                continue
            reason = describe_mismatch(got, want, want, self.tolerance)
            if reason is not None:
                return reason
        return None


def _with_progress(items: Sequence[T]) -> Iterable[T]:
    """Return the items; on a terminal, show how many have been taken."""
    return track(
        items,
        "tofuse times candidates",
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


def apply_choices(
    part: Partition, choices: Mapping[Region, Choice]
) -> tuple[Partition, dict[Region, Choice]]:
    """Return the partition after the chosen splits, and the choices for its regions."""
    cuts = {r: c.cut for r, c in choices.items() if c.kind == SPLIT}
    if not cuts:
        return part, dict(choices)
    splits = {r: split_region(r, part.aliases.memrefs, cut) for r, cut in cuts.items()}
    regions: list[Region] = []
    new_choices: dict[Region, Choice] = {}
    for r in part.regions:
        new_regions = splits.get(r) or (r,)
        regions += new_regions
        if r in choices:
            new_choices |= {n: replace(choices[r], kind=FUSED, cut=0) for n in new_regions}
    return replace(part, regions=tuple(regions)), new_choices


def timed_call(
    part: Partition,
    choices: Mapping[Region, Choice],
    config: Config,
    build_program: BuildProgram,
    inputs: Sequence[object],
) -> TimedCall:
    """Return a call of a partition on the inputs, into which nothing looks; raise TofuseError."""
    signature = CallSignature(part.graph.inputs, part.graph.outputs, {})
    quiet = replace(config, strict=True, mode="default", verify=False)
    run = build_program(part, signature, choices, quiet).load(None)
    return lambda: run([*inputs])


def best_cut(region: Region, context: CodegenContext, backend: Backend, machine: Machine) -> int:
    """Return the cut whose two kernels are predicted to be fastest; 0 if there is no cut."""
    positions = cut_positions(region)
    best_us, found = float("inf"), 0
    for cut in positions[:: max(1, len(positions) // MAX_TUNED_CUTS_PER_REGION)]:
        parts = split_region(region, context.partition.aliases.memrefs, cut) or ()
        predicted = (_predicted_us(context, backend, machine, part) for part in parts)
        times = [us for us in predicted if us is not None]
        if times and len(times) == len(parts) and sum(times) < best_us:
            best_us, found = sum(times), cut
    return found
