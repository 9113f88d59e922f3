"""Hand back: the calls that eager runs anyway run without Dynamo's guards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import is_grad_enabled

from tofuse.capture.dynamo.graph_breaks import num_graph_breaks
from tofuse.dispatch.call_kind import guard_of_call, kind_of_call
from tofuse.dispatch.dispatcher import MAX_TABLE_ENTRIES, Entry, Kind
from tofuse.torch_internals.dynamo_guards import GlobalStateGuard

WHY = "eager ran all programs of an earlier call of this kind"


@dataclass(frozen=True, eq=False)
class HandedBack:
    """A kind of call that eager runs: a guard, and whether torch's state is the same.

    `same_state` compares all that Dynamo compares, such as the dtypes of autocast. It is asked
    when a table gets an entry for the kind.
    """

    guard: Callable[..., bool]
    same_state: Callable[[], bool]


class Calls(threading.local):
    """How many programs eager has run in calls of this thread."""

    in_eager = 0


# programs that eager ran in this thread; programs; graph breaks, 0 once there is a program
Progress = tuple[int, int, int]


@dataclass(eq=False)
class HandBack:
    """The kinds of calls of one compiled function that eager runs, and facts of its programs.

    A call is handed back if eager ran all programs of an earlier call of its kind: the results are
    the same. A function in which graph breaks leave nothing to compile is handed back, too. This
    does not hold the function: programs hold this object, and Dynamo holds programs as long as the
    function's code.

    `mode` is what a kind has beside the arguments: the grad mode, and whether a module trains.
    `programs` counts the programs. A function is `partial` if a graph break divides it, so that a
    call may run several; `runs_compiled` if some calls of a program run compiled.
    """

    kinds: dict[Hashable, HandedBack] = field(default_factory=dict)
    mode: Callable[[], object] = is_grad_enabled
    programs: int = 0
    partial: bool = False
    runs_compiled: bool = False
    calls: Calls = field(default_factory=Calls)

    def begin(self) -> Progress:
        """Return what has run before a call of compiled code."""
        return self.calls.in_eager, self.programs, 0 if self.programs else num_graph_breaks()

    def end(self, begun: Progress, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Hand back the kind of a call that has run, if eager ran all of its programs."""
        in_eager, programs, breaks = begun
        if not programs and num_graph_breaks() > breaks:
            self.partial = True
        in_eager = self.calls.in_eager - in_eager
        if in_eager or (self.partial and not self.programs):
            self.add(in_eager, args, kwargs)

    def add(self, in_eager: int, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Hand back the kind of a call if eager ran all of its programs; it ran `in_eager`."""
        self.partial |= in_eager > 1
        if (self.partial and self.runs_compiled) or len(self.kinds) >= MAX_TABLE_ENTRIES:
            return
        if kind_of_call(args, kwargs) is not None:
            guard, state = guard_of_call(args, kwargs, self.mode), GlobalStateGuard().check
            self.kinds[self.kind(args, kwargs)] = HandedBack(guard, state)

    def kind(self, args: Sequence[object], kwargs: Mapping[str, object]) -> Hashable:
        """Return the kind of a call in the mode of now."""
        return self.mode(), kind_of_call(args, kwargs)


@dataclass(frozen=True, eq=False)
class EagerSource:
    """The entries for calls of a function that are handed back to it."""

    record: HandBack
    original: Callable[..., object]
    made: dict[HandedBack, Entry[object]] = field(default_factory=dict)

    def find(self, args: Sequence[object], kwargs: Mapping[str, object]) -> Entry[object] | None:
        """Return the entry for a call that is handed back; None if it is not."""
        record = self.record
        found = record.kinds.get(record.kind(args, kwargs)) if record.kinds else None
        if found is None or not found.same_state():
            return None
        if found not in self.made:
            self.made[found] = Entry(Kind.EAGER, found.guard, self.original, WHY)
        return self.made[found]
