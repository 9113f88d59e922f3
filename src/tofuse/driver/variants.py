"""The variants of a program: which one runs a call, and when a call gets one of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

R = TypeVar("R")

MAX_VARIANTS = 4  # specialized programs; calls of other kinds run the default
MAX_TIMED_KEYS = 4096  # kinds of calls that are timed at once
NEW_KEY = -1.0  # seconds of a kind of call that was not seen before: less than any threshold


@dataclass(frozen=True, eq=False)
class Variant(Generic[R]):
    """A program for the calls that `guard` accepts, and the reason why it exists."""

    guard: Callable[..., bool]
    run: Callable[..., R]
    reason: str


class Dispatcher(Generic[R]):
    """A program with variants. A call runs the first variant whose guard accepts its arguments.

    The variants are those of `guarded`, in order; then one for each kind of call, guarded by its
    key; then `default`. A kind gets a variant once its calls of the default have taken `threshold`
    seconds. The first call does not count, because it may do more work. With the time of
    compilation as the threshold, at most half of the program's total time is wasted. There are at
    most `MAX_VARIANTS` of them. `record` receives the reason for each.

    Threads may share a dispatcher, and signal handlers may call it: it has no lock. Of several
    callers that need a program, the first makes it, and the others run the default meanwhile. If
    the threshold is `NEW_KEY`, no call of the kind may run the default, and others make it, too.
    """

    def __init__(self, default: Callable[..., R], record: Callable[[str], None]) -> None:
        self.default, self.record = default, record
        self.guarded: tuple[Variant[R], ...] = ()
        self.key: Callable[..., Hashable] | None = None
        self.make: Callable[..., tuple[Callable[..., R], str] | None] = lambda *args: None
        self.threshold = 0.0
        self.by_key: dict[Hashable, Callable[..., R]] = {}
        self._makers: dict[Hashable, object] = {}  # of keys whose variant is made, or being made
        self._seconds: dict[Hashable, float] = {}

    def __call__(self, *args: object) -> R:
        for variant in self.guarded:
            if variant.guard(*args):
                return variant.run(*args)
        if self.key is None:
            return self.default(*args)
        key = self.key(*args)
        run = self.by_key.get(key)
        return self._run_default(key, args) if run is None else run(*args)

    def specialize(
        self,
        key: Callable[..., Hashable],
        make: Callable[..., tuple[Callable[..., R], str] | None],
        threshold: float,
    ) -> None:
        """Give kinds of calls that recur a variant from now on.

        `key(*args)` is the kind of a call; None if the default program suits it best.
        `make(*args)` returns a program for all calls of this kind, and the reason; or None if it
        cannot say now.
        """
        self.key, self.make, self.threshold = key, make, threshold

    def _run_default(self, key: Hashable, args: tuple[object, ...]) -> R:
        """Run a call that has no variant; make one if it is due."""
        is_full = key not in self._makers and len(self._makers) >= MAX_VARIANTS
        if key is None or is_full:
            return self.default(*args)
        seconds = self._seconds.get(key, NEW_KEY)
        if seconds >= self.threshold:
            return (self._make(key, args) or self.default)(*args)
        begin = time.perf_counter()
        result = self.default(*args)
        if seconds == NEW_KEY and len(self._seconds) >= MAX_TIMED_KEYS:
            self._seconds.clear()
        spent = 0.0 if seconds == NEW_KEY else time.perf_counter() - begin
        self._seconds[key] = self._seconds.get(key, 0.0) + spent
        return result

    def _make(self, key: Hashable, args: tuple[object, ...]) -> Callable[..., R] | None:
        """Make the variant for a key; return None if there is none now."""
        maker = object()
        is_first = self._makers.setdefault(key, maker) is maker  # one step for all threads
        found = self.by_key.get(key)
        if not is_first and (found is not None or self.threshold != NEW_KEY):
            return found
        made = None
        try:
            made = self.make(*args)
        finally:
            if made is None and is_first:
                self._makers.pop(key, None)
        if made is None:
            return None
        run = self.by_key.setdefault(key, made[0])
        if run is made[0]:
            self.record(made[1])
        return run
