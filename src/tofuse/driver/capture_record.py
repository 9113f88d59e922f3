"""What Dynamo captures during one call of a compiled function."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType

from tofuse.cache.guarded_codes import StoredProgram
from tofuse.capture.dynamo.keep_selection import EarlierPrograms
from tofuse.torch_internals.dynamo import GuardFilterEntry
from tofuse.torch_internals.dynamo_guards import traced_code


class Captured(Exception):
    """Raised instead of running a program that was compiled only for the cache."""


@dataclass(eq=False)
class CaptureRecord:
    """The number of captured programs and, of the last one, its guards and the traced code.

    `program` is None unless the program is kept on disk, and runs as it is there. `eager_reason` is
    why eager runs its calls; empty if compiled code does. `earlier` has the programs of all calls.
    """

    programs: int = 0
    guards: Sequence[GuardFilterEntry] | None = None
    traced: Sequence[CodeType] = ()
    program: StoredProgram | None = None
    eager_reason: str = ""
    earlier: EarlierPrograms = field(default_factory=EarlierPrograms)
    _function: weakref.ref[FunctionType] | None = None

    def function(self) -> FunctionType | None:
        """Return the Python function that Dynamo compiles; None if it is another callable.

        It is held weakly, because compiled programs refer to this record, and Dynamo keeps them as
        long as the function. The compiled function keeps it alive.
        """
        return None if self._function is None else self._function()

    def set_function(self, function: object) -> None:
        """Record the function that Dynamo compiles from now on."""
        self._function = weakref.ref(function) if isinstance(function, FunctionType) else None

    def clear(self) -> None:
        """Forget the programs."""
        self.programs, self.guards, self.traced, self.program = 0, None, (), None
        self.eager_reason = ""

    def begin_program(self) -> None:
        """Record that Dynamo has traced a program."""
        self.programs += 1
        self.traced, self.program, self.eager_reason = traced_code(), None, ""

    def set_guards(self, guards: Sequence[GuardFilterEntry]) -> None:
        """Record the guards of a program."""
        self.guards = guards
        self.earlier.add_constants(guards)
