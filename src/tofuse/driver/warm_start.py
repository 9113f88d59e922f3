"""Run what an earlier process has captured and compiled, without Dynamo."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from types import CodeType, FunctionType
from typing import ParamSpec, TypeVar

from torch.compiler import is_dynamo_compiling

from tofuse.cache.fingerprint import python_calls
from tofuse.cache.guarded_codes import StoredCode, load_codes, store_code
from tofuse.cache.programs import store_decision, uncacheable_options
from tofuse.capture.dynamo.guarded_code import BoundCode, guarded_code
from tofuse.driver.background import BackgroundCompiler
from tofuse.driver.capture_record import Captured
from tofuse.driver.function_record import FunctionRecord, log
from tofuse.driver.hand_back import kind_of_call
from tofuse.driver.stored_program import restore_program
from tofuse.errors import UnsupportedError
from tofuse.gc_pause import pause_gc
from tofuse.torch_internals.dynamo_guards import compiled_bytecode

P = ParamSpec("P")
R = TypeVar("R")
MAX_REASON_LENGTH = 300
MAX_KINDS = 64  # of calls that are looked up on disk


class WarmStart:
    """The guarded code of one function: what this process runs, and what else is on disk."""

    def __init__(self, owner: object, function: FunctionRecord) -> None:
        self.owner, self.record, self.config = owner, function, function.context.config
        self.bound: list[tuple[BoundCode, Callable[..., object]]] = []
        self.stored: list[StoredCode] | None = None
        self.kinds: set[object] = set()
        self.known: list[CodeType] = []  # bytecode of this process

    def find(
        self, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> Callable[..., object] | None:
        """Return the function that runs a call without Dynamo; None if no guards hold for it."""
        for k, entry in enumerate(self.bound):
            if entry[0].check(args, kwargs):
                if k:  # the kind of the last call is checked first
                    self.bound = [entry, *(e for e in self.bound if e is not entry)]
                return entry[1]
        function = self.record.capture.function()
        if function is None:
            return None
        with pause_gc():
            return self._load(function, args, kwargs)

    def _load(
        self, function: FunctionType, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> Callable[..., object] | None:
        """Return the function that runs a call, from disk."""
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
                run = bound.run_with(program)
                self.bound = [(bound, run), *self.bound]
                if self.stored is stored_codes:
                    self.stored = [x for x in stored_codes if x is not stored]
                return run
        self.kinds.add(kind)  # not before: another thread would not wait for this one's code
        if len(self.kinds) >= MAX_KINDS:
            self.stored = []
        return None

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
                store_decision(code[1].identity, (True, why), self.config)
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
        """Return why a later process captures the last call again; empty if it does not."""
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


def warm_start(
    compiled: Callable[P, R], codes: WarmStart, background: BackgroundCompiler | None = None
) -> Callable[P, R]:
    """Return a function that runs guarded code from disk if its guards hold for a call.

    Other calls run `compiled`; what Dynamo captures in them is written to disk. With `background`,
    they run in eager while another process compiles.
    """
    record = codes.record.capture

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if is_dynamo_compiling():
            return compiled(*args, **kwargs)
        ended = 0
        if background is not None:
            background.collect()
            ended = background.ended
        run = None
        if (codes.bound or codes.stored != []) and (background is None or not background.is_held):
            run = codes.find(args, kwargs)
        if run is not None:
            return run(*args, **kwargs)  # type: ignore[return-value]  # what `compiled` returns
        if background is not None and background.takes(kind := codes.kind_of(args, kwargs)):
            result: R = background.eager(*args, **kwargs)  # type: ignore[assignment]  # as above
            background.begin(kind, args, kwargs, ended)
            return result
        try:
            result = compiled(*args, **kwargs)
        except BaseException:
            record.clear()
            raise
        if record.guards is not None:
            codes.keep()
        return result

    return call
