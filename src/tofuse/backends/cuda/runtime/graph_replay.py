"""Record the launches of a plan as a CUDA graph, and replay it.

A graph reads and writes fixed addresses. Its results are the same memory in each replay, so it is
replayed only when nothing holds the results of the last replay; otherwise the plan runs.
"""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from tofuse.backends.cuda.runtime.cuda import raise_bad_index, wait_if_blocking
from tofuse.backends.cuda.runtime.gpu_driver import GpuDriver, gpu_driver
from tofuse.backends.cuda.runtime.graph_results import (
    GraphResult,
    describe_results,
    make_results,
    result_owners,
)
from tofuse.backends.launcher import Program
from tofuse.dispatch.dispatcher import Entry, Kind
from tofuse.errors import IndexOutOfRangeError, TofuseError, TofuseWarning, first_line
from tofuse.ops.reference import draw_seed
from tofuse.torch_internals.storage_owners import StorageOwners

WHY = "arguments were at these places before"
WARM_UP_CALLS = 1  # whose arguments may be elsewhere than in all later calls
REMEMBERED_CALLS = 4
MAX_PLACES = 2  # of an argument in these calls; one with more is copied
MAX_COPIED_BYTES = 16 << 20  # in each replay; with more, the plan runs
MAX_GRAPHS = 4  # of one plan at a time
MAX_EQUAL_GRAPHS = 2  # for the same arguments: a loop may hold the results of one while it calls
MAX_RECORDINGS = 8

Place = tuple[int, tuple[int, ...]]  # the address and the strides of an argument
Places = Mapping[int, Place]  # by position


RecordedSeeds = list[tuple[torch.Tensor, torch.device]]


@dataclass(eq=False)
class GraphSeeds:
    """Draws the seeds of a plan; in a thread that records a graph, memory that replays fill."""

    recorded: RecordedSeeds = field(default_factory=list)
    thread: int | None = None

    def draw(self, device: torch.device | None = None) -> torch.Tensor:
        if self.thread != threading.get_ident():
            return draw_seed(device)
        if device is None or device.type == "cpu":
            raise TofuseError("a random seed is in CPU memory")
        seed = torch.empty(2, dtype=torch.int64, device=device)
        self.recorded.append((seed, device))
        return seed


@dataclass(frozen=True, eq=False)
class _Graph(Entry[None]):
    """A recorded graph, which reads `copies` of some arguments, and the others at fixed places.

    The guard takes places and a stream. `owners` are those of the results that the graph computes.
    `seeds` are drawn before a replay.
    """

    copies: Mapping[int, torch.Tensor]
    results: Sequence[GraphResult]
    owners: Sequence[StorageOwners]
    seeds: RecordedSeeds


def _guard(
    fixed: Places, copies: Mapping[int, torch.Tensor], stream: int
) -> Callable[[Places, int], bool]:
    """Return whether a graph can be replayed with arguments at some places, on a stream."""

    def accepts(places: Places, other: int) -> bool:
        same = all(places.get(k) == place for k, place in fixed.items())
        strides = all(k in places and places[k][1] == t.stride() for k, t in copies.items())
        return same and strides and other == stream

    return accepts


@dataclass(eq=False)
class GraphReplay:
    """A compiled plan that is recorded as a graph once the places of its arguments recur.

    The graph reads some arguments where they are: those that come back to the same place. The
    others are copied before each replay. The plan runs instead of a graph while another thread is
    in this program, while the user captures a graph, and while all graphs' results are held.

    `tensors` has the positions of the arguments that are tensors. The plan writes those in
    `mutated`. All are on GPU `device`.
    """

    run: Program
    name: str
    tensors: Sequence[int]
    mutated: frozenset[int]
    device: int
    seeds: GraphSeeds
    driver: GpuDriver = field(default_factory=gpu_driver)
    lock: threading.Lock = field(default_factory=threading.Lock)
    graphs: list[_Graph] = field(default_factory=list)  # the last one was used last
    recordings: int = 0
    calls: int = 0
    history: deque[Places] = field(default_factory=lambda: deque(maxlen=REMEMBERED_CALLS))

    def __call__(self, args: list[object]) -> list[torch.Tensor]:
        results = None
        if not self.driver.is_capturing() and self.lock.acquire(blocking=False):
            try:
                if self.driver.current_device() == self.device:
                    results = self._replay_or_record(args)
            finally:
                self.lock.release()
        # no reference to an argument is left: the plan releases each after its last use
        return self.run(args) if results is None else results

    def _replay_or_record(self, args: list[object]) -> list[torch.Tensor] | None:
        """Return the results of a replay; None if no graph can be replayed for this call."""
        tensors = {k: t for k in self.tensors if isinstance(t := args[k], torch.Tensor)}
        places = {k: (t.data_ptr(), t.stride()) for k, t in tensors.items()}
        stream = self.driver.stream(self.device)
        self.graphs = [g for g in self.graphs if not any(o.is_moved() for o in g.owners)]
        fitting = [g for g in self.graphs if g.guard(places, stream)]
        graph = next((g for g in fitting if all(o.is_free() for o in g.owners)), None)
        if graph is None and len(fitting) < MAX_EQUAL_GRAPHS and self._recurs(places):
            graph = self._record(tensors, places, stream, args)
        if graph is None:
            return None
        self.graphs.remove(graph)
        self.graphs.append(graph)
        return self._replay(graph, tensors, args)

    def _recurs(self, places: Places) -> bool:
        """Note a call without a graph; return whether most arguments were there before."""
        self.calls += 1
        if self.calls <= WARM_UP_CALLS or self.recordings == MAX_RECORDINGS:
            return False
        moving = self._moving(places)
        fixed = [(k, place) for k, place in places.items() if k not in moving]
        recurs = any(all(p.get(k) == place for k, place in fixed) for p in self.history)
        self.history.append(places)
        return recurs

    def _moving(self, places: Places) -> frozenset[int]:
        """Return the arguments that were at more places than there may be graphs for."""
        seen = {k: {place, *(p[k] for p in self.history if k in p)} for k, place in places.items()}
        return frozenset(k for k, found in seen.items() if len(found) > MAX_PLACES)

    def _record(
        self, tensors: dict[int, torch.Tensor], places: Places, stream: int, args: list[object]
    ) -> _Graph | None:
        """Return a graph for these arguments; None if none can be recorded."""
        moving = self._moving(places)
        copied_bytes = sum(_span(tensors[k]) * tensors[k].element_size() for k in moving)
        if copied_bytes > MAX_COPIED_BYTES or not all(map(self._is_readable, tensors.values())):
            return None
        self.driver.synchronize()
        raise_bad_index(self.driver)  # of an earlier call
        copies = {k: _empty_like(tensors[k]) for k in moving}
        given = [copies.get(k, a) for k, a in enumerate(args)]
        arguments = [*given]
        self.recordings += 1
        self.seeds.recorded, self.seeds.thread = [], threading.get_ident()
        try:
            made, replay = self.driver.record(lambda: self.run(given))
            results = describe_results(made, arguments)
            del made, arguments
        except IndexOutOfRangeError:
            raise
        except Exception as error:
            self.recordings = MAX_RECORDINGS
            why = f"{type(error).__name__}: {first_line(error)}"
            message = f"tofuse records no CUDA graph of this {self.name}: {why}"
            warnings.warn(message, TofuseWarning, stacklevel=2)
            return None
        finally:
            self.seeds.thread = None
        fixed = {k: place for k, place in places.items() if k not in moving}
        owners, seeds = result_owners(results), self.seeds.recorded
        guard = _guard(fixed, copies, stream)
        graph = _Graph(Kind.RECORDED, guard, replay, WHY, copies, results, owners, seeds)
        self.graphs = [*self.graphs[-MAX_GRAPHS + 1 :], graph]
        return graph

    def _is_readable(self, t: torch.Tensor) -> bool:
        """Return whether a tensor has memory on this GPU, if it has elements."""
        return not t.numel() or (t.data_ptr() != 0 and self.driver.is_on(t, self.device))

    def _replay(
        self, graph: _Graph, tensors: dict[int, torch.Tensor], args: list[object]
    ) -> list[torch.Tensor]:
        raise_bad_index(self.driver)
        for k, copy in graph.copies.items():
            _distinct(copy).copy_(_distinct(tensors[k]))
        for seed, device in graph.seeds:
            seed.copy_(draw_seed(device))
        graph.run()
        for k in self.mutated & graph.copies.keys():
            tensors[k].copy_(graph.copies[k])
        wait_if_blocking(self.driver)
        results = make_results(graph.results, args)
        args.clear()
        return results


def _span(t: torch.Tensor) -> int:
    """Return the elements from a tensor's first to its last one in memory."""
    steps = (s * (n - 1) for s, n in zip(t.stride(), t.shape, strict=True))
    return 1 + sum(steps) if t.numel() else 0


def _empty_like(t: torch.Tensor) -> torch.Tensor:
    """Return memory for a copy of a tensor with its strides."""
    memory = torch.empty(_span(t), dtype=t.dtype, device=t.device)
    return memory.as_strided(t.shape, t.stride())


def _distinct(t: torch.Tensor) -> torch.Tensor:
    """Return a tensor without repeated elements: with one element along each stride of 0."""
    if 0 not in t.stride():
        return t
    shape = [1 if s == 0 and n > 0 else n for n, s in zip(t.shape, t.stride(), strict=True)]
    return t.as_strided(shape, t.stride())
