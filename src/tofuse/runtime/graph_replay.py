"""Record the launches of a plan as a CUDA graph, and replay it.

A graph reads and writes fixed addresses. Its results are the same memory in each replay, so it is
replayed only when nothing holds the results of the last replay; otherwise the plan runs.
"""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from tofuse.errors import TofuseError, TofuseWarning, first_line
from tofuse.ir.plan import Allocate, Arena, Call, Launch, Plan
from tofuse.runtime.cuda import CudaLauncher, raise_bad_index, wait_if_blocking
from tofuse.runtime.execute import CompiledPlan, Kernel
from tofuse.runtime.gpu_driver import GpuDriver, gpu_driver
from tofuse.runtime.pool import COUNTS_SHOW_OWNERS, StorageOwners
from tofuse.torch_internals.memory import reinterpret_tensor

WARM_UP_CALLS = 2  # launch by launch: they compile for the alignments of the arguments
MAX_GRAPHS = 4  # of one plan at a time
MAX_RECORDINGS = 8
MAX_EQUAL_GRAPHS = 2  # with the same addresses: a loop holds the results of one while it calls
MAX_ADDRESSES = 2  # of an argument that is not copied, for each of which there is a graph
REMEMBERED_CALLS = 4
COLLECTIVES = ("_c10d_functional.", "c10d_functional.")


def graph_replay(
    run: CompiledPlan,
    plan: Plan,
    kernels: Sequence[Kernel],
    callables: Mapping[str, Callable[..., object]],
) -> CompiledPlan:
    """Return a plan that replays a graph where it can; or `run`, if it cannot be recorded."""
    device = recordable_device(plan, kernels, callables)
    return run if device is None else GraphReplay(run, plan, device)


def recordable_device(
    plan: Plan, kernels: Sequence[Kernel], callables: Mapping[str, Callable[..., object]]
) -> int | None:
    """Return the GPU on which all of a plan runs; None if it cannot be recorded.

    All kernels must run on one GPU and read no scalars in CPU memory, and sizes must be constant.
    Python's callables and collectives are not recorded. One launch is no slower than a graph.
    """
    devices: set[int | None] = set()
    launches = 0
    for step in plan.steps:
        match step:
            case Launch():
                kernel = kernels[step.kernel]
                if not isinstance(kernel, CudaLauncher) or kernel.reads_host_scalars:
                    return None
                devices.add(kernel.device)
                launches += len(kernel.launches)
            case Call(target=target):
                if target in callables or target.startswith(COLLECTIVES):
                    return None
                launches += 1
            case Arena() | Allocate(device="cpu"):
                return None
    if plan.symbols or launches < 2 or not COUNTS_SHOW_OWNERS:
        return None
    return devices.pop() if len(devices) == 1 else None


@dataclass(frozen=True, eq=False)
class _Graph:
    """A recorded graph: `copies` are memory for arguments that are not at fixed `addresses`.

    `owners` are those of the results that the graph computes.
    """

    replay: Callable[[], None]
    addresses: Addresses
    copies: Mapping[int, torch.Tensor]
    results: Sequence[_Result]
    owners: Sequence[StorageOwners]
    stream: int


Addresses = Mapping[int, int]  # by position of the argument
View = tuple[tuple[int, ...], tuple[int, ...], int]  # shape, strides, elements before the first


@dataclass(frozen=True, eq=False)
class _Result:
    """A result: the memory `value` of the graph, an argument, or a view of one.

    `number` is the position of the first result that is the same tensor. Arguments are named by
    position, so that a graph does not keep them alive.
    """

    number: int
    value: object = None
    argument: int | None = None
    view: View | None = None


class GraphReplay:
    """A compiled plan that is recorded as a graph after two calls.

    A graph reads arguments where they were in two calls, and copies of those that are elsewhere in
    each call. Calls with other addresses, on other streams, from several threads at once or while a
    graph is captured run the plan, as do calls while the results of all graphs are held.
    """

    def __init__(self, run: CompiledPlan, plan: Plan, device: int) -> None:
        self.run, self.device, self.name = run, device, plan.name
        self.tensors = [k for k, p in enumerate(plan.parameters) if p.strides is not None]
        self.mutated = frozenset(k for k, p in enumerate(plan.parameters) if p.mutated)
        self.driver: GpuDriver = gpu_driver()
        self.lock = threading.Lock()
        self.graphs: list[_Graph] = []
        self.recordings = self.calls = 0
        self.last: deque[Addresses] = deque(maxlen=REMEMBERED_CALLS)
        self.seen: dict[int, set[int]] = {k: set() for k in self.tensors}
        self.moving: frozenset[int] = frozenset()  # arguments that are elsewhere in each call

    def __call__(self, args: list[object]) -> list[torch.Tensor]:
        if self.driver.is_capturing() or not self.lock.acquire(blocking=False):
            return self.run(args)
        try:
            if self.driver.current_device() != self.device:
                return self.run(args)
            return self._call(args)
        finally:
            self.lock.release()

    def _call(self, args: list[object]) -> list[torch.Tensor]:
        tensors = {k: t for k in self.tensors if isinstance(t := args[k], torch.Tensor)}
        addresses = {k: t.data_ptr() for k, t in tensors.items()}
        stream = self.driver.stream(self.device)
        equal = 0
        for graph in self.graphs:
            if graph.stream == stream and _is_at(graph.addresses, addresses):
                if all(owners.is_free() for owners in graph.owners):
                    return self._replay(graph, tensors, args)
                equal += 1
        if equal < MAX_EQUAL_GRAPHS and self._should_record(tensors, addresses):
            made = self._record(tensors, addresses, stream, args)
            if made is not None:
                return self._replay(made, tensors, args)
        return self.run(args)

    def _should_record(self, tensors: dict[int, torch.Tensor], addresses: dict[int, int]) -> bool:
        """Note the addresses of a call that no graph is for; return whether they recur."""
        if self.recordings == MAX_RECORDINGS:
            return False
        self.calls += 1
        for k, address in addresses.items():
            self.seen[k].add(address)
            if len(self.seen[k]) > MAX_ADDRESSES and k not in self.moving:
                self.moving |= {k}
        self.graphs = [g for g in self.graphs if self.moving.isdisjoint(g.addresses)]
        fixed = {k: address for k, address in addresses.items() if k not in self.moving}
        recurs = any(_is_at(fixed, earlier) for earlier in self.last)
        self.last.append(addresses)
        on_gpu = all(self.driver.is_on_gpu(t) for t in tensors.values() if t.numel())
        enough = self.calls > WARM_UP_CALLS and len(self.graphs) < MAX_GRAPHS
        return recurs and on_gpu and enough

    def _record(
        self,
        tensors: dict[int, torch.Tensor],
        addresses: dict[int, int],
        stream: int,
        args: list[object],
    ) -> _Graph | None:
        """Return a graph for these arguments; None if none can be recorded."""
        copies = {k: _copy(t) for k, t in tensors.items() if k in self.moving}
        given = [copies.get(k, a) for k, a in enumerate(args)]
        held = [*given]  # so that the plan overwrites none of them
        self.recordings += 1
        try:
            made, replay = self.driver.record(lambda: self.run(given))
            results = _describe_results(made, held)
            del made, held
            owners = _owners(results)
        except Exception as error:
            self.recordings = MAX_RECORDINGS
            why = f"{type(error).__name__}: {first_line(error)}"
            message = f"tofuse records no CUDA graph of this {self.name}: {why}"
            warnings.warn(message, TofuseWarning, stacklevel=2)
            return None
        fixed = {k: address for k, address in addresses.items() if k not in copies}
        self.graphs.append(_Graph(replay, fixed, copies, results, owners, stream))
        return self.graphs[-1]

    def _replay(
        self, graph: _Graph, tensors: dict[int, torch.Tensor], args: list[object]
    ) -> list[torch.Tensor]:
        raise_bad_index(self.driver)
        arguments = [*args]
        for k, copy in graph.copies.items():
            _distinct(copy).copy_(_distinct(tensors[k]))
        graph.replay()
        for k in self.mutated & graph.copies.keys():
            tensors[k].copy_(graph.copies[k])
        args.clear()
        wait_if_blocking(self.driver)
        made: dict[int, object] = {}
        for r in graph.results:
            if r.number not in made:
                made[r.number] = _new_result(r, arguments)
        return [made[r.number] for r in graph.results]  # type: ignore[misc]  # as the plan's


def _is_at(expected: Addresses, addresses: Addresses) -> bool:
    return all(addresses.get(k) == address for k, address in expected.items())


def _copy(t: torch.Tensor) -> torch.Tensor:
    """Return memory for a copy of a tensor with its strides."""
    shape = _distinct(t).shape
    memory = torch.empty_strided(shape, t.stride(), dtype=t.dtype, device=t.device)
    return memory.as_strided(t.shape, t.stride())


def _distinct(t: torch.Tensor) -> torch.Tensor:
    """Return the elements of a tensor that are not the same memory: one along a stride of 0."""
    if 0 not in t.stride():
        return t
    shape = [1 if s == 0 and n > 0 else n for n, s in zip(t.shape, t.stride(), strict=True)]
    return t.as_strided(shape, t.stride())


def _new_result(r: _Result, arguments: Sequence[object]) -> object:
    """Return the result of a replay: an argument, a view of one, or the memory of the graph."""
    if r.argument is None:
        t = r.value
        return reinterpret_tensor(t, t.shape, t.stride(), 0) if isinstance(t, torch.Tensor) else t
    argument = arguments[r.argument]
    if r.view is None:
        return argument
    shape, strides, offset = r.view
    assert isinstance(argument, torch.Tensor)
    with torch.no_grad():
        return argument.as_strided(shape, strides, int(argument.storage_offset()) + offset)


def _describe_results(results: Sequence[object], arguments: Sequence[object]) -> list[_Result]:
    """Return the results of a recorded call; raise TofuseError for a view in another dtype."""
    positions = {id(t): k for k, t in enumerate(arguments) if isinstance(t, torch.Tensor)}
    storages = {
        t.untyped_storage().data_ptr(): (k, t)
        for k, t in enumerate(arguments)
        if isinstance(t, torch.Tensor) and t.numel()
    }
    first: dict[int, int] = {}
    found = []
    for n, t in enumerate(results):
        number = first.setdefault(id(t), n)
        if id(t) in positions:
            found.append(_Result(number, argument=positions[id(t)]))
        elif isinstance(t, torch.Tensor) and t.untyped_storage().data_ptr() in storages:
            k, viewed = storages[t.untyped_storage().data_ptr()]
            if t.dtype is not viewed.dtype:
                raise TofuseError("a result is a view of an argument in another dtype")
            offset = int(t.storage_offset()) - int(viewed.storage_offset())
            found.append(_Result(number, None, k, (tuple(t.shape), t.stride(), offset)))
        else:
            found.append(_Result(number, t))
    return found


def _owners(results: Sequence[_Result]) -> list[StorageOwners]:
    """Return the owners of the memory of the results that the graph computes."""
    tensors = [t for r in results if isinstance(t := r.value, torch.Tensor) and t.numel()]
    return [StorageOwners(t) for t in {t.untyped_storage().data_ptr(): t for t in tensors}.values()]
