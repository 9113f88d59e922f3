"""Functions traced once for each kind of arguments, with guards on the arguments alone.

No bytecode is analyzed: the function runs once on fake tensors. Guards check dtype, shape, strides,
device and requires_grad of tensors, which arguments are the same tensor, other arguments by value,
grad mode, autocast, and the training flags and hooks of modules. Free tensors of the function, such
as parameters of modules, are inputs by identity: they get gradients, and writes into them are seen.
Another tensor under the same name is not seen, except for parameters, buffers and submodules of a
module that is itself compiled. Python numbers and other globals are constants after the first call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MethodType

import torch
from numpy import ndarray
from torch.compiler import is_dynamo_compiling
from torch.nn.parameter import is_lazy

from tofuse.capture.aot.aot_graphs import AOTGraphs, NeedsAutograd, NeedsInference
from tofuse.capture.lower.executor_claims import ClaimPredicate, claim_nothing
from tofuse.capture.trace.arguments import CallArguments, Keywords, flatten_call, signature_of
from tofuse.capture.trace.free_variables import find_free_tensors
from tofuse.capture.trace.joint_trace import compile_program
from tofuse.capture.trace.rollback import reject_argument_changes, restore_modules
from tofuse.capture.trace.tensor_kinds import (
    Contents,
    contents_of_wrappers,
    is_traceable,
)
from tofuse.dispatch.dispatcher import Entry, EntryTable, Kind
from tofuse.errors import CaptureError
from tofuse.torch_internals.dispatch import TensorGuards
from tofuse.torch_internals.dynamo import compile_lock, compiling_session
from tofuse.torch_internals.memory import storage_key, viewed_tensor
from tofuse.torch_internals.modules import hook_tables, submodules, tensor_tables
from tofuse.torch_internals.transforms import forward_mode_active, transforms_active

State = tuple[object, ...]


@dataclass(frozen=True)
class Slot:
    """A module's table of parameters or buffers, and a name in it."""

    table: Mapping[str, torch.Tensor | None]
    name: str


Layout = tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int]  # shape, strides and offset
SharedStorage = tuple[int, int, Layout | None]


@dataclass(frozen=True, eq=False)
class TracedEntry(Entry[object]):
    """A compiled program, its guards on a call, and the tensors that it reads beside arguments.

    The guard takes the tensors of the call, then the other tensors that the program reads.
    """

    free_tensors: tuple[torch.Tensor, ...]
    slots: tuple[Slot, ...]
    tied_slots: tuple[tuple[Slot, Slot], ...]  # pairs that hold the same tensor
    kept_alive: tuple[object, ...]  # arguments whose ids are in the signature
    free_arguments: tuple[tuple[int, torch.Tensor], ...]  # that are free tensors as well
    shared_storage: tuple[SharedStorage, ...] | None  # guarded if an argument is written
    wrappers: tuple[tuple[int, Contents], ...]  # of the tensors that wrap others, such as DTensors

    def extra_inputs(self) -> tuple[torch.Tensor | None, ...]:
        """Return the current tensors that are read beside the arguments."""
        if not self.slots:
            return self.free_tensors
        return (*self.free_tensors, *[s.table.get(s.name) for s in self.slots])

    def has_same_contents(
        self, tensors: Sequence[torch.Tensor], extra: Sequence[torch.Tensor]
    ) -> bool:
        """Return whether tensors are one, share storage and wrap others as when traced."""
        if self.wrappers and contents_of_wrappers((*tensors, *extra)) != self.wrappers:
            return False
        if self.free_arguments and any(tensors[k] is not t for k, t in self.free_arguments):
            return False
        if self.tied_slots and any(
            a.table.get(a.name) is not b.table.get(b.name) for a, b in self.tied_slots
        ):
            return False
        return self.shared_storage is None or self.shared_storage == shared_storage(tensors)


class Traced:
    """A callable that traces, compiles and caches."""

    def __init__(
        self,
        function: Callable[..., object],
        new_graphs: Callable[[], AOTGraphs],
        module: torch.nn.Module | None = None,
        claims: ClaimPredicate = claim_nothing,
    ) -> None:
        self.function, self.new_graphs, self.claims = function, new_graphs, claims
        self.module = module
        # by the state, for calls with distinct tensors only; for others by state and signature
        self.entries = EntryTable[TracedEntry]()
        self._scan_modules()

    def _scan_modules(self) -> None:
        """Find the submodules; drop all entries, which were compiled for other submodules."""
        self.modules = [] if self.module is None else list(self.module.modules())
        self.submodules = [(h, tuple(h.values())) for m in self.modules if (h := submodules(m))]
        self.hooks = [h for m in self.modules for h in hook_tables(m)]
        self.entries.clear()

    def __call__(self, *args: object, **kwargs: object) -> object:
        if forward_mode_active():  # kernels have no forward-mode derivatives
            return self.function(*args, **kwargs)
        for table, children in self.submodules:
            if tuple(table.values()) != children:
                self._scan_modules()
                break
        state = self._state()
        if not kwargs and (found := self._find(state, args)) is not None:
            entry, extra = found
            return entry.run(*args, *extra)
        return self._run_or_trace(state, args, kwargs)

    def __reduce__(self) -> str:
        """Return the qualified name: copied and pickled like a function."""
        return str(self.__dict__.get("__qualname__", type(self).__name__))

    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., object]:
        """Return a method whose `self` is an argument like any other."""
        return self if instance is None else MethodType(self, instance)

    def _state(self) -> State:
        """Return modes, dtypes, training flags, then the keys of existing hooks."""
        autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        deterministic = torch.are_deterministic_algorithms_enabled()
        state = torch.is_grad_enabled(), torch.get_default_dtype(), autocast, deterministic
        if not self.modules:
            return state
        hook_keys = [tuple(h) for h in self.hooks if h] if any(self.hooks) else ()
        return (*state, *[m.training for m in self.modules], *hook_keys)

    def _find(
        self, key: tuple[object, ...], tensors: Sequence[object]
    ) -> tuple[TracedEntry, tuple[torch.Tensor | None, ...]] | None:
        """Return the entry for these arguments, and its inputs beside them; None if none is."""
        for entry in self.entries.get(key):
            extra = entry.extra_inputs()
            try:
                matches = entry.guard(*tensors, *extra)
            except (TypeError, RuntimeError):  # not all are tensors
                continue
            if matches and entry.has_same_contents(tensors, extra):  # type: ignore[arg-type]  # guarded
                return entry, extra
        return None

    def _run_or_trace(self, state: State, args: tuple[object, ...], kwargs: Keywords) -> object:
        """Run a call with any arguments; trace if no entry matches."""
        if transforms_active() or is_dynamo_compiling():
            return self.function(*args, **kwargs)
        signature, tensors = signature_of(args, kwargs)
        if (found := self._find((state, signature), tensors)) is not None:
            entry, extra = found
            return entry.run(*tensors, *extra)
        call = flatten_call(args, kwargs)
        if not all(map(is_traceable, tensors)) or any(isinstance(x, ndarray) for x in call.leaves):
            return self.function(*args, **kwargs)
        module_tensors = [s.table[s.name] for s in self._slots()]
        if any(t is not None and is_lazy(t) for t in module_tensors):  # this call initializes them
            return self.function(*args, **kwargs)
        with compile_lock, compiling_session():
            entry, result = self._trace(call)
        key = state if call.only_tensors else (state, signature)
        self.entries.add(key, entry)
        return result

    def _trace(self, call: CallArguments) -> tuple[TracedEntry, object]:
        """Compile for this call; return the cache entry and the result of the call."""
        template = replace(call, tensors=())  # which the entry must not keep alive

        def flat(*tensors: torch.Tensor) -> object:
            args, kwargs = template.rebuild(tensors)
            with reject_argument_changes((args, kwargs), tensors):
                return self.function(*args, **kwargs)

        read: list[torch.Tensor] = []
        with restore_modules(self.modules, read):
            read += find_free_tensors(flat, call.tensors)
        argument_index = {id(t): k for k, t in enumerate(call.tensors)}
        slots: dict[int, Slot] = {}
        tied_slots: list[tuple[Slot, Slot]] = []
        for slot in self._slots():
            tensor = slot.table[slot.name]
            if tensor is not None and (first := slots.setdefault(id(tensor), slot)) is not slot:
                tied_slots.append((first, slot))
        free = [t for t in read if id(t) not in argument_index and id(t) not in slots]
        in_slots = [t for t in read if id(t) not in argument_index and id(t) in slots]
        tensors = [*call.tensors, *free, *in_slots]
        count, graphs = len(call.tensors), self.new_graphs()
        with restore_modules(self.modules, read):
            try:
                program = compile_program(flat, tensors, count, graphs, self.claims)
            except NeedsInference:
                graphs = replace(self.new_graphs(), inference_only=True)
                program = compile_program(flat, tensors, count, graphs, self.claims)
            except NeedsAutograd as error:
                raise CaptureError(
                    "capture='trace' cannot trace a program that writes an argument which requires "
                    "grad under no_grad, and changes the sizes or strides of one in place; compile "
                    "it without capture='trace'"
                ) from error
        entry = TracedEntry(
            kind=Kind.TRACED,
            guard=TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check,
            run=program.run,
            why="arguments of this kind were traced",
            free_tensors=tuple(free),
            slots=tuple(slots[id(t)] for t in in_slots),
            tied_slots=tuple(tied_slots),
            kept_alive=call.leaves,
            free_arguments=tuple(
                (argument_index[id(t)], t) for t in read if id(t) in argument_index
            ),
            shared_storage=shared_storage(call.tensors) if program.mutates_arguments else None,
            wrappers=contents_of_wrappers(tensors),
        )
        return entry, program.first_result

    def _slots(self) -> list[Slot]:
        return [
            Slot(table, name)
            for module in self.modules
            for table in tensor_tables(module)
            for name in table
        ]


def shared_storage(tensors: Sequence[torch.Tensor]) -> tuple[SharedStorage, ...]:
    """Return how AOTAutograd sees the memory that tensors share.

    For each: the first tensor that shares its storage, its storage offset, and the dtype and layout
    of the tensor that it is a view of, through which AOTAutograd writes. The entry of a tensor that
    shares no storage is (-1, 0, None).
    """
    storages = [storage_key(t.untyped_storage()) for t in tensors]
    first = [storages.index(s) for s in storages]
    return tuple(
        (k, int(t.storage_offset()), _viewed_layout(t)) if first.count(k) > 1 else (-1, 0, None)
        for k, t in zip(first, tensors, strict=True)
    )


def _viewed_layout(t: torch.Tensor) -> Layout | None:
    viewed = viewed_tensor(t)
    if viewed is None:
        return None
    return viewed.dtype, tuple(viewed.shape), viewed.stride(), int(viewed.storage_offset())
