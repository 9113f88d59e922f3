"""Autotune regions: time the candidates for each region and store the fastest on disk."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from tofuse.analysis.alias import AliasAnalysis, is_view
from tofuse.cache.store import Store
from tofuse.cost.thresholds import MAX_CUTS, MAX_SCHEDULES, MIN_GAIN, TIMING_S
from tofuse.errors import TofuseError
from tofuse.fusion.partition.region_split import cut_positions, split_region
from tofuse.ir.dims import symbols_of
from tofuse.ir.graph import Op, device_of
from tofuse.ir.graph.print import show_graph
from tofuse.ir.region import Partition, Region
from tofuse.ir.schedule import Schedule, parse_schedule
from tofuse.report.repro import region_graph
from tofuse.runtime.execute import CompiledPlan
from tofuse.runtime.sample_inputs import sample_tensors
from tofuse.runtime.timing import TimedCall, interleaved_us, real_tensors

KIND = "choice"
VERSION = "1"  # of the candidates; stored choices of other versions are ignored


FUSED, SPLIT, ATEN = "fused", "split", "aten"


@dataclass(frozen=True)
class Choice:
    """How to run a region, and the measured microseconds of each candidate.

    A schedule of None stands for the one that the heuristics choose. `cut` is the position at
    which a split region is cut.
    """

    kind: str = FUSED
    schedule: Schedule | None = None
    cut: int = 0
    times: tuple[tuple[str, float], ...] = field(default=(), compare=False)

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
        named = "".join(f", {name} {us:.4g}" for name, us in slower if name in (FUSED, ATEN))
        unnamed = sum(name not in (FUSED, ATEN) for name, _ in slower)
        rest = f", {unnamed} slower candidates" if unnamed else ""
        return f"measured: {fastest} {us:.4g} us{named}{rest}"


# a choice, and a function that builds it; it returns None if the candidate cannot be built
Candidate = tuple[Choice, Callable[[], "TimedCall | None"]]


@dataclass(frozen=True)
class TuningCallbacks:
    """What the autotuner needs from the compiler.

    `build` compiles a partition with the given choices. `schedules` returns a region's alternative
    schedules, the one predicted to be fastest first. `predicted_us` returns the predicted
    microseconds of a region; infinite if it has no kernel.
    """

    build: Callable[[Partition, Mapping[Region, Choice]], CompiledPlan]
    schedules: Callable[[Partition, Region], Sequence[Schedule]]
    predicted_us: Callable[[Partition, Region], float]


def autotune(
    part: Partition, callbacks: TuningCallbacks, key: Sequence[str], store: Store
) -> dict[Region, Choice]:
    """Return the choice for each static region on the CPU that is no library call.

    Choices stored on disk are not measured again.
    """
    on_cpu = [r for r in part.regions if not r.library and device_of(r.ops) == "cpu"]
    regions = [r for r in on_cpu if _is_static(r)]
    choices: dict[Region, Choice] = {}
    with progress_bar(len(regions), "tofuse times candidates") as advance, real_tensors():
        for region in regions:
            isolated = isolate_region(region, part)
            anonymous = tuple(replace(op, loc=None) for op in isolated.graph.ops)
            text = show_graph(replace(isolated.graph, name="region", ops=anonymous))
            candidates = list(_candidates(isolated, callbacks))
            choices[region] = choose(candidates, (*key, text), store)
            advance()
    return choices


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


def _candidates(part: Partition, callbacks: TuningCallbacks) -> Iterator[Candidate]:
    """Yield the candidates for a partition of one region, the default kernel first."""
    (region,) = part.regions
    inputs = sample_tensors(part.graph.inputs, {})

    def candidate(choice: Choice) -> Candidate:
        def build() -> TimedCall | None:
            try:
                run = callbacks.build(part, {region: choice})
            except TofuseError:
                return None
            return lambda: run([*inputs])

        return choice, build

    yield candidate(Choice())
    for schedule in callbacks.schedules(part, region)[:MAX_SCHEDULES]:
        yield candidate(Choice(FUSED, schedule))
    cut = _best_cut(part, region, callbacks)
    if cut:
        yield candidate(Choice(SPLIT, None, cut))
    yield candidate(Choice(ATEN))


def _best_cut(part: Partition, region: Region, callbacks: TuningCallbacks) -> int:
    """Return the cut whose two kernels are predicted to be fastest; 0 if there is no cut."""
    positions = cut_positions(region)
    best_us, best_cut = float("inf"), 0
    for cut in positions[:: max(1, len(positions) // MAX_CUTS)]:
        regions = split_region(region, part.aliases.memrefs, cut)
        if regions is None:
            continue
        us = sum(callbacks.predicted_us(part, r) for r in regions)
        if us < best_us:
            best_us, best_cut = us, cut
    return best_cut


def _is_static(region: Region) -> bool:
    values = (*region.inputs, *region.outputs)
    return not any(symbols_of(d) for v in values for d in (*v.shape, *v.layout))


def choose(
    candidates: Sequence[Candidate],
    key: Sequence[str],
    store: Store,
    seconds: float = TIMING_S,
) -> Choice:
    """Return the fastest candidate; the stored one if these candidates were timed before.

    Timing takes `seconds` per candidate. The first candidate wins unless another is faster by
    `MIN_GAIN`, so that noise does not decide. Candidates that cannot be built or fail when run
    are skipped. If the first one fails, nothing is timed.
    """
    key = (VERSION, *key)
    names = {choice.name for choice, _ in candidates}
    stored = _parse(store.get(KIND, key), names)
    if stored is not None:
        return stored
    runnable: list[tuple[Choice, TimedCall]] = []
    for choice, build in candidates:
        step = build()
        if step is not None and _runs(step):
            runnable.append((choice, step))
    if not runnable or runnable[0][0] is not candidates[0][0]:
        return candidates[0][0]
    times = interleaved_us([step for _, step in runnable], seconds)
    named_times = tuple((c.name, us) for (c, _), us in zip(runnable, times, strict=True))
    best = min(range(len(times)), key=times.__getitem__)
    if times[best] > (1 - MIN_GAIN) * times[0]:
        best = 0
    winner = replace(runnable[best][0], times=named_times)
    store.put(KIND, key, _show(winner))
    return winner


@contextmanager
def progress_bar(total: int, description: str) -> Iterator[Callable[[], None]]:
    """Show a progress bar if stderr is a terminal; yield a function that advances it."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    disable = not sys.stderr.isatty()
    with Progress(*columns, console=console, transient=True, disable=disable) as bar:
        task = bar.add_task(description, total=total)
        yield lambda: bar.advance(task)


def _runs(step: TimedCall) -> bool:
    """Return whether a candidate runs without an exception."""
    try:
        step()
    except Exception:
        return False
    return True


def _show(choice: Choice) -> str:
    schedule = None if choice.schedule is None else repr(choice.schedule)
    content = {"kind": choice.kind, "schedule": schedule, "cut": choice.cut, "times": choice.times}
    return json.dumps(content)


def _parse(text: str | None, names: set[str]) -> Choice | None:
    """Parse a stored choice; None if it is damaged or not among the candidates' names."""
    if text is None:
        return None
    try:
        content = json.loads(text)
        schedule = None if content["schedule"] is None else parse_schedule(content["schedule"])
        times = tuple((str(name), float(us)) for name, us in content["times"])
        choice = Choice(str(content["kind"]), schedule, int(content["cut"]), times)
    except (ValueError, KeyError, TypeError):
        return None
    return choice if choice.name in names else None
