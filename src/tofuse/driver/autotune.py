"""Measured choice: real candidates for a region, timed in turns; the fastest is kept on disk."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from tofuse.analysis.alias import is_view, memrefs_of
from tofuse.cache.store import Store
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
VERSION = "1"  # of the candidates; choices of other versions are not believed
TURN_S = 0.05  # of timing for each candidate
GAIN = 0.03  # in proportion, that a candidate must be faster than the plain kernel by

SCHEDULES = 4  # of a kernel that are tried beside the chosen one, the best predicted
CUTS = 12  # places whose prediction is looked at, to find the one that is tried

FUSED, SPLIT, ATEN = "fused", "split_region", "aten"


@dataclass(frozen=True)
class Choice:
    """What a region shall be, and what was measured: microseconds by candidate."""

    kind: str = FUSED
    schedule: Schedule | None = None  # None: as the heuristics choose
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
        (first, us), *others = sorted(self.times, key=lambda t: t[1])
        named = ", ".join(f"{name} {us:.4g}" for name, us in others if name in (FUSED, ATEN))
        more = len(others) - sum(name in (FUSED, ATEN) for name, _ in others)
        rest = f", {more} others slower" if more else ""
        return f"measured: {first} {us:.4g} us" + (f", {named}" if named else "") + rest


Candidate = tuple[Choice, Callable[[], "TimedCall | None"]]  # None where it cannot be made


@dataclass(frozen=True)
class TuningCallbacks:
    """How to make a program of regions as chosen; a region's other schedules, the best predicted
    first; and microseconds predicted for a region by itself, infinite where it is no kernel."""

    make: Callable[[Partition, Mapping[Region, Choice]], CompiledPlan]
    schedules: Callable[[Partition, Region], Sequence[Schedule]]
    predicted: Callable[[Partition, Region], float]


def autotune(
    part: Partition, workshop: TuningCallbacks, key: Sequence[str], store: Store
) -> dict[Region, Choice]:
    """A choice for every kernel of known sizes on the CPU, measured now or before."""
    ours = [r for r in part.regions if not r.library and device_of(r.ops) == "cpu"]
    regions = [r for r in ours if _is_static(r)]
    found: dict[Region, Choice] = {}
    with progress_bar(len(regions), "tofuse measures candidates") as advance, real_tensors():
        for region in regions:
            alone = isolate_region(region, part)
            text = re.sub(r" *# at .*", "", show_graph(alone.graph))
            text = text.replace(alone.graph.name, "region", 1)
            found[region] = choose(list(_candidates(alone, workshop)), (*key, text), store)
            advance()
    return found


def apply_choices(
    part: Partition, choices: Mapping[Region, Choice]
) -> tuple[Partition, dict[Region, Choice]]:
    """The partition with regions split that shall be, and the choices for what is there then."""
    places = {r: c.cut for r, c in choices.items() if c.kind == SPLIT}
    if not places:
        return part, dict(choices)
    halves = {r: split_region(r, part.storage, cut) for r, cut in places.items()}
    regions: list[Region] = []
    found: dict[Region, Choice] = {}
    for r in part.regions:
        now = halves.get(r) or (r,)
        regions += now
        if r in choices:
            found |= {n: replace(choices[r], kind=FUSED, cut=0) for n in now}
    return replace(part, regions=tuple(regions)), found


def isolate_region(region: Region, part: Partition) -> Partition:
    """A partition of one region, its inputs lying where they lie in the program: what it reads as
    two views of one tensor is one tensor here too."""
    makers, views = part.graph.producers(), dict[Op, None]()
    work = [*region.inputs]
    while work:
        op = makers.get(work.pop())
        if op is not None and is_view(op):
            views[op] = None
            work += op.inputs
    ops = tuple(op for op in part.graph.ops if op in views or op in region.ops)
    graph = region_graph(replace(region, ops=ops), part.storage)
    alone = Region(region.name, graph.ops, region.outputs)
    return Partition(graph, (alone,), memrefs_of(graph), (), rounded=part.rounded)


def _candidates(part: Partition, workshop: TuningCallbacks) -> Iterator[Candidate]:
    """The kernel as it is first."""
    (region,) = part.regions
    inputs = sample_tensors(part.graph.inputs, {})

    def made(choice: Choice) -> Candidate:
        def make() -> TimedCall | None:
            try:
                run = workshop.make(part, {region: choice})
            except TofuseError:
                return None
            return lambda: run([*inputs])

        return choice, make

    yield made(Choice())
    for schedule in workshop.schedules(part, region)[:SCHEDULES]:
        yield made(Choice(FUSED, schedule))
    cut = _best_cut(part, region, workshop)
    if cut:
        yield made(Choice(SPLIT, None, cut))
    yield made(Choice(ATEN))


def _best_cut(part: Partition, region: Region, workshop: TuningCallbacks) -> int:
    """The cut whose two kernels are predicted to be fastest; 0 where there is none."""
    places = cut_positions(region)
    best, found = float("inf"), 0
    for cut in places[:: max(1, len(places) // CUTS)]:
        halves = split_region(region, part.storage, cut)
        if halves is None:
            continue
        us = sum(workshop.predicted(part, half) for half in halves)
        if us < best:
            best, found = us, cut
    return found


def _is_static(region: Region) -> bool:
    values = (*region.inputs, *region.outputs)
    return not any(symbols_of(d) for v in values for d in (*v.shape, *v.layout))


def choose(candidates: Sequence[Candidate], key: Sequence[str], store: Store) -> Choice:
    """The fastest candidate, from disk where it was measured before.

    The first candidate is kept unless another is clearly faster, so that noise changes nothing.
    One that cannot be made, or fails when run, is out; where that is the first, nothing is
    measured.
    """
    key = (VERSION, *key)
    names = {choice.name for choice, _ in candidates}
    kept = _parse(store.get(KIND, key), names)
    if kept is not None:
        return kept
    running: list[tuple[Choice, TimedCall]] = []
    for choice, make in candidates:
        step = make()
        if step is not None and _runs(step):
            running.append((choice, step))
    if not running or running[0][0] is not candidates[0][0]:
        return candidates[0][0]
    times = interleaved_us([step for _, step in running], TURN_S)
    measured = tuple((c.name, us) for (c, _), us in zip(running, times, strict=True))
    best = min(range(len(times)), key=times.__getitem__)
    if times[best] > (1 - GAIN) * times[0]:
        best = 0
    won = running[best][0]
    won = Choice(won.kind, won.schedule, won.cut, measured)
    store.put(KIND, key, _show(won))
    return won


@contextmanager
def progress_bar(total: int, what: str) -> Iterator[Callable[[], None]]:
    """A bar on the terminal while things are measured; nothing where there is none."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    shown = sys.stderr.isatty()
    with Progress(*columns, console=console, transient=True, disable=not shown) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


def _runs(step: TimedCall) -> bool:
    """Whether a candidate runs at all; one that does not is no candidate."""
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
    """A choice kept before; None for anything that is not one of today's candidates."""
    if text is None:
        return None
    try:
        found = json.loads(text)
        schedule = found["schedule"]
        times = tuple((str(name), float(us)) for name, us in found["times"])
        read = None if schedule is None else parse_schedule(schedule)
        choice = Choice(str(found["kind"]), read, int(found["cut"]), times)
    except (ValueError, KeyError, TypeError):
        return None
    return choice if choice.name in names else None
