"""Run what an earlier process has captured and compiled, without Dynamo."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from types import CodeType, FunctionType

from tofuse.cache.fingerprint import python_calls
from tofuse.cache.guarded_codes import StoredCode, load_codes, store_code
from tofuse.cache.programs import Decision, store_decision, uncacheable_options
from tofuse.capture.dynamo.guarded_code import BoundCode, guarded_code
from tofuse.dispatch.call_kind import kind_of_call
from tofuse.dispatch.dispatcher import MAX_TABLE_ENTRIES, Entry, Kind, never
from tofuse.driver.background import BackgroundCompiler
from tofuse.driver.capture_record import Captured
from tofuse.driver.function_record import FunctionRecord, log
from tofuse.driver.stored_program import restore_program
from tofuse.errors import UnsupportedError
from tofuse.gc_pause import pause_gc
from tofuse.torch_internals.dynamo_guards import compiled_bytecode

MAX_REASON_LENGTH = 300
WHY = "another process has captured and compiled it"


class WarmStart:
    """The guarded code of one function on disk: a source of entries.

    Calls without code run in eager while another process compiles, if there is a `background`.
    """

    def __init__(self, owner: object, function: FunctionRecord) -> None:
        self.owner, self.record, self.config = owner, function, function.context.config
        self.background: BackgroundCompiler | None = None
        self.entries: tuple[Entry[object], ...] = ()
        self.stored: list[StoredCode] | None = None
        self.kinds: set[object] = set()
        self.known: list[CodeType] = []  # bytecode of this process

    def find(self, args: Sequence[object], kwargs: Mapping[str, object]) -> Entry[object] | None:
        """Return the entry for a call of which there is code on disk, or will be."""
        background = self.background
        if background is None:
            is_empty = self.stored == [] and not self.entries
            return None if is_empty else self._find_code(args, kwargs)
        background.collect()
        ended = background.ended
        if not background.is_held and (found := self._find_code(args, kwargs)) is not None:
            return found
        kind = self.kind_of(args, kwargs)
        return background.entry(kind, ended) if background.takes(kind) else None

    def _find_code(
        self, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> Entry[object] | None:
        """Return the entry for code on disk whose guards hold for a call.

        An entry that is loaded is for this call alone: the call may decide for eager.
        """
        entries = self.entries
        found = next((e for e in entries if e.guard(*args, **kwargs)), None)
        function = self.record.capture.function() if found is None and self.stored != [] else None
        if function is not None:
            with pause_gc():
                found = self._load(function, args, kwargs)
        if found is None and self.entries is not entries:  # another thread has loaded one
            return self._find_code(args, kwargs)
        return found

    def _load(
        self, function: FunctionType, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> Entry[object] | None:
        stored_codes = self.stored  # another thread may call `reload`
        if stored_codes is None:
            stored_codes = self.stored = load_codes(function, self.config)
        if not stored_codes:
            return None
        kind = self.kind_of(args, kwargs)
        if kind in self.kinds:
            return None
        for stored in stored_codes:
            try:
                bound = stored[0].bind(function, args, kwargs)
                program = None if bound is None else restore_program(stored[1], self.record)
            except Exception as error:  # of an entry that does not suit this process
                log.debug("a capture on disk cannot be run: %s", error)
                continue
            if bound is not None and program is not None:
                entry = Entry(Kind.STORED, self._guard(bound), bound.run_with(program), WHY)
                self.entries = (entry, *self.entries)  # before it is no longer among the stored
                if self.stored is stored_codes:
                    self.stored = [x for x in stored_codes if x is not stored]
                return replace(entry, guard=never)
        self.kinds.add(kind)  # not before: another thread would not wait for this one's code
        if len(self.kinds) >= MAX_TABLE_ENTRIES:
            self.stored = []
        return None

    def _guard(self, bound: BoundCode) -> Callable[..., bool]:
        background, check = self.background, bound.check
        if background is None:
            return check
        return lambda *args, **kwargs: not background.is_held and check(*args, **kwargs)

    def kind_of(self, args: Sequence[object], kwargs: Mapping[str, object]) -> Hashable:
        """Return the kind of a call, with the mode of a module."""
        return kind_of_call(args, kwargs), getattr(self.owner, "training", None)

    def reload(self) -> None:
        """Read the disk again at the next call that no bound code accepts."""
        self.stored = None
        self.kinds.clear()

    def keep(self) -> str:
        """Write the last capture of Dynamo to disk; return why another process cannot run it.

        The result is empty if it can.
        """
        try:
            function, code = self._captured()
            if not store_code(function, code, self.config):
                return "the cache on disk cannot be written"
            if why := self.record.capture.eager_reason:
                store_decision(code[1].identity, Decision(True, why), self.config)
        except Exception as error:  # the call itself has succeeded
            log.debug("this capture is not kept on disk: %s", error)
            return f"{error}"
        finally:
            self.record.capture.clear()
        return ""

    def _captured(self) -> tuple[FunctionType, StoredCode]:
        """Return the last capture of Dynamo as data, with the function that it is of.

        Raises UnsupportedError if another process cannot run it.
        """
        record = self.record.capture
        function = record.function()
        if record.guards is None or function is None:
            raise UnsupportedError("Dynamo has captured nothing")
        found = compiled_bytecode(function.__code__)
        new = [code for code in found if all(code is not known for known in self.known)]
        self.known = found
        if record.programs != 1 or len(new) != 1:
            raise UnsupportedError("a graph break divides it, or it has several programs")
        program = record.program
        if program is None:
            raise UnsupportedError("its program cannot be kept on disk")
        calls = python_calls(program.calls)
        code = guarded_code(function, new[0], record.guards, record.traced, calls)
        return function, (code, program)

    def obstacle(self) -> str:
        """Return why a later process captures the last call again, or ""; forget the capture."""
        if names := uncacheable_options(self.config):
            return f"programs with {', '.join(names)} are not kept"
        try:
            self._captured()
        except Exception as error:
            return f"{error}"
        finally:
            self.record.capture.clear()  # guards hold what they compare
        return ""

    def capture(
        self,
        compiled: Callable[..., object],
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> str:
        """Capture a call and write it to disk, without running it; return why that failed, or "".

        `compiled` is a function under a context with `capture_only`.
        """
        function = self.record.capture.function()
        if function is not None:
            self.known = compiled_bytecode(function.__code__)
        try:
            compiled(*args, **kwargs)
        except Captured:
            pass
        except Exception as error:
            return f"{type(error).__name__}: {' '.join(str(error).split())[:MAX_REASON_LENGTH]}"
        program = self.record.capture.program
        reason = self.keep()
        if not reason and (program is None or restore_program(program, self.record) is None):
            return "its program is not in the cache on disk"
        return reason
