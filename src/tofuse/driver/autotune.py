"""Autotune regions: time the candidates for each region and store the fastest on disk."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeVar

from rich.console import Console
from rich.progress import track

from tofuse.analysis.alias import AliasAnalysis, is_view
from tofuse.config import Config
from tofuse.cost.machine import Machine
from tofuse.cost.machine_source import measured_machine
from tofuse.cost.nest_cost import nest_cost
from tofuse.cost.thresholds import MAX_CUTS, MAX_SCHEDULES, MIN_GAIN, TIMING_S
from tofuse.disk_store import Store, store_of
from tofuse.driver.codegen import ChosenSchedule, CodegenContext
from tofuse.errors import TofuseError
from tofuse.fusion.lower.axes import LoweringError
from tofuse.fusion.partition.region_split import cut_positions, split_region
from tofuse.ir.dims import symbols_of
from tofuse.ir.graph import Op, device_of, show_graph
from tofuse.ir.nest import Nest
from tofuse.plan.signature import CallSignature
from tofuse.region import Partition, Region
from tofuse.report.number_format import show_us
from tofuse.report.repro import region_graph
from tofuse.runtime.execute import CompiledPlan
from tofuse.runtime.sample_inputs import sample_tensors
from tofuse.runtime.timing import TimedCall, interleaved_us, real_tensors
from tofuse.schedule.build_nest import build_nest
from tofuse.schedule.schedule_legality import Unschedulable
from tofuse.schedule.schedule_variants import schedule_variants

T = TypeVar("T")
KIND = "choice"
VERSION = "2"  # of the candidates; stored choices of other versions are ignored
FUSED, SPLIT, ATEN = "fused", "split", "aten"


@dataclass(frozen=True)
class Choice:
    """How to run a region, and the measured microseconds of each candidate.

    A schedule of None stands for the one that the heuristics choose. `cut` is the position at
    which a split region is cut. `notes` name candidates whose results are wrong.
    """

    kind: str = FUSED
    schedule: ChosenSchedule = None
    cut: int = 0
    times: tuple[tuple[str, float], ...] = field(default=(), compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def name(self) -> str:
        at = f" at {self.cut}" if self.kind == SPLIT else ""
        return f"{self.kind}{at}" + (f" ({self.schedule!r})" if self.schedule else "")

    @property
    def why(self) -> str:
        """The measured times as text, the fastest first."""
        if not self.times:
            return "not measured"
        (fastest, us), *slower = sorted(self.times, key=lambda t: t[1])
        named = "".join(f", {name} {show_us(us)}" for name, us in slower if name in (FUSED, ATEN))
        unnamed = sum(name not in (FUSED, ATEN) for name, _ in slower)
        rest = f", {unnamed} slower candidates" if unnamed else ""
        return f"measured: {fastest} {show_us(us)}{named}{rest}"


class Linked(Protocol):
    """A program that can be loaded, without a clock."""

    def load(self, clock: None) -> CompiledPlan: ...


BuildProgram = Callable[[Partition, CallSignature, Mapping[Region, Choice], Config], Linked]
# a choice, and a function that builds it; it returns None if the candidate cannot be built
Candidate = tuple[Choice, Callable[[], "TimedCall | None"]]
# the microseconds of each call
TimeCalls = Callable[[Sequence[TimedCall]], list[float]]


def measured_choices(context: CodegenContext, build_program: BuildProgram) -> dict[Region, Choice]:
    """Return the fastest candidate for each static region on the CPU that is no library call.

    Choices stored on disk are not measured again.
    """
    part, config = context.partition, context.config
    kernels = [r for r in part.regions if not r.library]
    regions = [r for r in kernels if device_of(r.ops) == "cpu" and is_static(r)]
    key = (repr(context.oracle.target), config.precision, *config.executors)
    store = store_of(config)
    choices: dict[Region, Choice] = {}
    with real_tensors():
        for region in with_progress(regions):
            isolated = replace(context, partition=isolate_region(region, part))
            candidates = list(_candidates(isolated, build_program))
            choices[region] = choose(candidates, (*key, region_text(isolated)), store)
    return choices


def with_progress(items: Sequence[T]) -> Iterable[T]:
    """Return the items; on a terminal, show how many have been taken."""
    return track(
        items,
        "tofuse times candidates",
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


def region_text(isolated: CodegenContext) -> str:
    """Return the text of a partition of one region, without names of files."""
    graph = isolated.partition.graph
    anonymous = tuple(replace(op, loc=None) for op in graph.ops)
    return show_graph(replace(graph, name="region", ops=anonymous))


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


def isolate_region(region: Region, part: Partition) -> Partition:
    """Return a partition of one region whose inputs have the strides they have in the program.

    Inputs that are views of one tensor stay views of one tensor.
    """
    producers, views = part.graph.producers(), dict[Op, None]()
    worklist = [*region.inputs]
    while worklist:
        op = producers.get(worklist.pop())
        if op is not None and is_view(op):
            views[op] = None
            worklist += op.inputs
    ops = tuple(op for op in part.graph.ops if op in views or op in region.ops)
    graph = region_graph(replace(region, ops=ops), part.aliases.memrefs)
    isolated = Region(region.name, graph.ops, region.outputs)
    return Partition(graph, (isolated,), AliasAnalysis(graph), (), rounded=part.rounded)


def build_candidate(
    choice: Choice, context: CodegenContext, build_program: BuildProgram, inputs: Sequence[object]
) -> TimedCall | None:
    """Return a call of a partition of one region, run as chosen; None if it cannot be built."""
    part, strict = context.partition, replace(context.config, strict=True, mode="default")
    signature = CallSignature(part.graph.inputs, part.graph.outputs, {})
    try:
        split, choices = apply_choices(part, {part.regions[0]: choice})
        run = build_program(split, signature, choices, strict).load(None)
    except TofuseError:
        return None
    return lambda: run([*inputs])


def _candidates(context: CodegenContext, build_program: BuildProgram) -> Iterator[Candidate]:
    """Yield the candidates for a partition of one region, the default kernel first."""
    (region,) = context.partition.regions
    inputs = sample_tensors(context.partition.graph.inputs)

    def candidate(choice: Choice) -> Candidate:
        return choice, partial(build_candidate, choice, context, build_program, inputs)

    machine = measured_machine(context.oracle.target, context.config)
    yield candidate(Choice())
    if (nest := _nest(region, context)) is not None:
        variants = schedule_variants(nest.kernel, nest.schedule)
        for variant in sorted(variants, key=lambda n: nest_cost(n, machine).us)[:MAX_SCHEDULES]:
            yield candidate(Choice(FUSED, variant.schedule))
    cut = best_cut(region, context, lambda r: _predicted_us(r, context, machine))
    if cut:
        yield candidate(Choice(SPLIT, None, cut))
    yield candidate(Choice(ATEN))


def _predicted_us(region: Region, context: CodegenContext, machine: Machine) -> float | None:
    nest = _nest(region, context)
    return None if nest is None else nest_cost(nest, machine).us


def _nest(region: Region, context: CodegenContext) -> Nest | None:
    """Return the nest with the schedule that the heuristics choose; None if there is none."""
    part, oracle = context.partition, context.oracle
    try:
        kept = oracle.schedule(oracle.lowerings.kernel(region, part.aliases.memrefs, part.rounded))
        return kept.nest or build_nest(kept.kernel, kept.schedule, repeat_reductions=True)
    except (LoweringError, Unschedulable):
        return None


def best_cut(
    region: Region, context: CodegenContext, predict: Callable[[Region], float | None]
) -> int:
    """Return the cut whose two kernels are predicted to be fastest; 0 if there is no cut.

    `predict` returns the microseconds of a region's kernel, or None if it has none.
    """
    positions = cut_positions(region)
    best_us, found = float("inf"), 0
    for cut in positions[:: max(1, len(positions) // MAX_CUTS)]:
        parts = split_region(region, context.partition.aliases.memrefs, cut) or ()
        times = [us for us in map(predict, parts) if us is not None]
        if times and len(times) == len(parts) and sum(times) < best_us:
            best_us, found = sum(times), cut
    return found


def is_static(region: Region) -> bool:
    """Whether all sizes and strides of a region's arguments and results are numbers."""
    values = (*region.inputs, *region.outputs)
    return not any(symbols_of(d) for v in values for d in (*v.shape, *v.layout))


def choose(
    candidates: Sequence[Candidate],
    key: Sequence[str],
    store: Store,
    seconds: float = TIMING_S,
) -> Choice:
    """Return the fastest candidate; the stored one if these candidates were timed before.

    Timing takes `seconds` per candidate.
    """
    stored = stored_choice([choice for choice, _ in candidates], key, store)
    if stored is not None:
        return stored
    return measure_choice(candidates, key, store, lambda calls: interleaved_us(calls, seconds))


def stored_choice(choices: Sequence[Choice], key: Sequence[str], store: Store) -> Choice | None:
    """Return the one of the choices that is stored under a key; None if none is."""
    return _parse(store.get(KIND, (VERSION, *key)), choices)


def measure_choice(
    candidates: Sequence[Candidate], key: Sequence[str], store: Store, time_calls: TimeCalls
) -> Choice:
    """Time the candidates, and store and return the fastest.

    The first candidate wins unless another is faster by `MIN_GAIN`, so that noise does not decide.
    Candidates that cannot be built or fail when run are skipped. If the first one fails, nothing is
    timed.
    """
    runnable: list[tuple[Choice, TimedCall]] = []
    for choice, build in candidates:
        step = build()
        if step is None:
            continue
        with suppress(Exception):  # a candidate that fails when run
            step()
            runnable.append((choice, step))
    if not runnable or runnable[0][0] is not candidates[0][0]:
        return candidates[0][0]
    times = time_calls([step for _, step in runnable])
    named_times = tuple((c.name, us) for (c, _), us in zip(runnable, times, strict=True))
    best = min(range(len(times)), key=times.__getitem__)
    if times[best] > (1 - MIN_GAIN) * times[0]:
        best = 0
    winner = replace(runnable[best][0], times=named_times)
    store.put(KIND, (VERSION, *key), json.dumps({"name": winner.name, "times": named_times}))
    return winner


def _parse(text: str | None, candidates: Sequence[Choice]) -> Choice | None:
    """Return the candidate with the stored name; None if there is none or the text is damaged."""
    try:
        content = json.loads(text or "")
        times = tuple((str(name), float(us)) for name, us in content["times"])
        chosen = {choice.name: choice for choice in candidates}[content["name"]]
    except (ValueError, KeyError, TypeError):
        return None
    return replace(chosen, times=times)
