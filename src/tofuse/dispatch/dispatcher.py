"""Which code runs a call: tables of entries, each with a guard, code, and the reason for it.

A call passes three tables. If no entry of one accepts it, the table's general code runs.

1. Of the function (`dispatching`): entries of the kinds EAGER, STORED and BACKGROUND. The general
   code is what Dynamo compiles, which has guards of its own.
2. Of the program that Dynamo or a stored entry has chosen (`Dispatcher`): entries of the kinds
   NEEDS_PYTORCH, EAGER and SPECIALIZED. The general code is the program for all sizes. A backward
   has such a table, too.
3. Of a plan on a GPU (`graph_replay.py`): entries of the kind RECORDED.

A function that is traced, and a definition, have an `EntryTable` (TRACED, SPECIALIZED) in place of
the first two. Each entry is logged at the level DEBUG when it is made; `tofuse.explain` reports the
decisions of programs. There are at most `MAX_TABLE_ENTRIES` in a table.

Locks: no call waits for a lock here, because signal handlers may call, too. A table is a tuple or a
dict whose changes are one step for all threads. Of several callers that need an entry, the first
makes it, and the others run the general code meanwhile. A thread
that compiles holds `compile_lock` of `torch_internals/dynamo.py`, and releases it before it runs a
call.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, ParamSpec, Protocol, TypeVar

from torch.compiler import is_dynamo_compiling

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
E = TypeVar("E", bound="Entry[object]")

log = logging.getLogger(__name__)

MAX_TABLE_ENTRIES = 256
MAX_SPECIALIZED = 4  # programs for some sizes or strides; calls of other kinds run the general one
MAX_TIMED_CALL_KINDS = 4096
NEW_KEY = -1.0  # seconds of a kind of call that was not seen before: less than any threshold


class Kind(IntEnum):
    """The kinds of entries, and who makes them; a program's table asks them in this order."""

    NEEDS_PYTORCH = 1  # modes, or a written argument overlaps another: `driver/first_call.py`
    EAGER = 2  # eager is faster: `driver/first_call.py`; without guards: `driver/hand_back.py`
    STORED = 3  # an earlier process has compiled it: `driver/warm_start.py`
    BACKGROUND = 4  # eager, while another process compiles: `driver/background.py`
    TRACED = 5  # for arguments of this kind: `capture/trace/traced.py`
    SPECIALIZED = 6  # for sizes or strides that recur: `driver/compile_program.py`,
    #                  `driver/stride_variants.py`; for layouts: `frontends/execute_definition.py`
    RECORDED = 7  # a CUDA graph of a plan: `backends/cuda/runtime/graph_replay.py`


@dataclass(frozen=True, eq=False)
class Entry(Generic[R_co]):
    """Code for the calls that `guard` accepts, and the reason why it was made."""

    kind: Kind
    guard: Callable[..., bool]
    run: Callable[..., R_co]
    why: str

    def __post_init__(self) -> None:
        log.debug("an entry for calls, %s: %s", self.kind.name, self.why)


def never(*args: object, **kwargs: object) -> bool:
    """Return False: the guard of an entry that is for one call."""
    return False


class EntryTable(Generic[E]):
    """Entries by key, the last one first; there are at most `MAX_TABLE_ENTRIES` of them."""

    def __init__(self) -> None:
        self.by_key: dict[Hashable, tuple[E, ...]] = {}

    def __iter__(self) -> Iterator[E]:
        return (entry for entries in [*self.by_key.values()] for entry in entries)

    def __len__(self) -> int:
        return sum(map(len, [*self.by_key.values()]))

    def get(self, key: Hashable) -> tuple[E, ...]:
        """Return the entries of a key."""
        return self.by_key.get(key, ())

    def add(self, key: Hashable, entry: E) -> None:
        """Add an entry before the others of its key."""
        while len(self) >= MAX_TABLE_ENTRIES:  # drop one of the key that was added to first
            oldest = next(iter(self.by_key))
            self.by_key[oldest] = self.by_key.get(oldest, ())[:-1]
            if not self.by_key[oldest]:
                self.by_key.pop(oldest, None)
        self.by_key[key] = (entry, *self.by_key.pop(key, ()))

    def clear(self) -> None:
        """Drop all entries."""
        self.by_key.clear()


class Source(Protocol):
    """Finds an entry for a call of a function that no entry of its table accepts."""

    def find(
        self, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> Entry[object] | None: ...


# runs code for a call with these arguments, and notes what it did
Observe = Callable[[Callable[..., R], Sequence[object], Mapping[str, object]], R]


def dispatching(
    sources: Sequence[Source], compiled: Callable[P, R], observe: Observe[R]
) -> Callable[P, R]:
    """Return a function whose calls run the entries that the sources find, or the compiled code.

    The sources are asked in turn, for a call that no entry of the table accepts.
    The table holds what they have found: the entry of the last call first, and one of the kind
    `EAGER`. Compiled code, and an entry at its first call, run under `observe`.
    """
    table: tuple[tuple[Callable[..., bool], Callable[..., R], Entry[R]], ...] = ()  # of entries

    def use(entry: Entry[R]) -> None:
        nonlocal table
        others = (x for x in table if x[2] is not entry)
        kept = (x for x in others if entry.kind is not Kind.EAGER or x[2].kind is not Kind.EAGER)
        table = ((entry.guard, entry.run, entry), *kept)[:MAX_TABLE_ENTRIES]

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if is_dynamo_compiling():
            return compiled(*args, **kwargs)
        for guard, run, entry in table:
            try:
                if not guard(*args, **kwargs):
                    continue
            except TypeError:  # there are other arguments in number or name
                continue
            if entry is not table[0][2]:
                use(entry)
            return run(*args, **kwargs)
        for source in sources:
            found: Entry[R] | None = source.find(args, kwargs)  # type: ignore[assignment]
            if found is not None:
                if found.guard is not never:
                    use(found)
                return observe(found.run, args, kwargs)
        return observe(compiled, args, kwargs)

    return call


class Dispatcher(Generic[R]):
    """The table of a program. A call runs the first entry whose guard accepts its arguments.

    The entries are those of `entries`, in order; then one for each kind of call, by its key; then
    `general`. A kind gets an entry once its calls of the general code have taken `threshold`
    seconds. The first call does not count, because it may do more work. With the time of
    compilation as the threshold, at most half of the program's total time is wasted. There are at
    most `MAX_SPECIALIZED` of them. `record` receives the reason for each.

    Under `NEW_KEY`, the first call of a kind makes its entry, and calls that come meanwhile make
    one, too, in place of running the general code. Once `MAX_SPECIALIZED` kinds have an entry,
    other kinds run the general code.
    """

    def __init__(self, general: Callable[..., R], record: Callable[[str], None]) -> None:
        self.general, self.record = general, record
        self.entries: tuple[Entry[R], ...] = ()
        self.key: Callable[..., Hashable] | None = None
        self.make: Callable[..., tuple[Callable[..., R], str] | None] = lambda *args: None
        self.threshold = 0.0
        self.by_key: dict[Hashable, Entry[R]] = {}
        self._makers: dict[Hashable, object] = {}  # of keys whose entry is made, or being made
        self._seconds: dict[Hashable, float] = {}

    def __call__(self, *args: object) -> R:
        for entry in self.entries:
            if entry.guard(*args):
                return entry.run(*args)
        if self.key is None:
            return self.general(*args)
        key = self.key(*args)
        found = self.by_key.get(key)
        return self._run_general(key, args) if found is None else found.run(*args)

    def add(self, entry: Entry[R]) -> None:
        """Add an entry behind the others of its kind."""
        self.entries = (*sorted((*self.entries, entry), key=lambda e: e.kind),)

    def add_kind(self, key: Hashable, run: Callable[..., R], why: str) -> None:
        """Add the entry for the calls of one kind, under the keys of `specialize`."""
        self.by_key[key] = Entry(Kind.SPECIALIZED, never, run, why)

    def specialize(
        self,
        key: Callable[..., Hashable],
        make: Callable[..., tuple[Callable[..., R], str] | None],
        threshold: float,
    ) -> None:
        """Give kinds of calls that recur an entry from now on.

        `key(*args)` is the kind of a call; None if the general code suits it best.
        `make(*args)` returns a program for all calls of this kind, and the reason; or None if it
        cannot say now.
        """
        self.key, self.make, self.threshold = key, make, threshold

    def _run_general(self, key: Hashable, args: tuple[object, ...]) -> R:
        """Run a call that has no entry; make one if it is due."""
        is_full = key not in self._makers and len(self._makers) >= MAX_SPECIALIZED
        if key is None or is_full:
            return self.general(*args)
        seconds = self._seconds.get(key, NEW_KEY)
        if seconds >= self.threshold:
            return (self._make(key, args) or self.general)(*args)
        begin = time.perf_counter()
        result = self.general(*args)
        if seconds == NEW_KEY and len(self._seconds) >= MAX_TIMED_CALL_KINDS:
            self._seconds.clear()
        spent = 0.0 if seconds == NEW_KEY else time.perf_counter() - begin
        self._seconds[key] = self._seconds.get(key, 0.0) + spent
        return result

    def _make(self, key: Hashable, args: tuple[object, ...]) -> Callable[..., R] | None:
        """Make the entry for a key; return None if there is none now."""
        maker = object()
        is_first = self._makers.setdefault(key, maker) is maker  # one step for all threads
        found = self.by_key.get(key)
        if not is_first and (found is not None or self.threshold != NEW_KEY):
            return None if found is None else found.run
        made = None
        try:
            made = self.make(*args)
        finally:
            if made is None and is_first:
                self._makers.pop(key, None)
        if made is None:
            return None
        new = Entry(Kind.SPECIALIZED, never, *made)  # its key is the guard
        entry = self.by_key.setdefault(key, new)
        if entry is new:
            self.record(entry.why)
        return entry.run
