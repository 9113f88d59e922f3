"""What Dynamo captures during one call of a compiled function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import CodeType

from tofuse.cache.guarded_codes import StoredProgram
from tofuse.capture.dynamo.keep_selection import EarlierPrograms
from tofuse.torch_internals.dynamo import GuardFilterEntry
from tofuse.torch_internals.dynamo_guards import traced_code


class Captured(Exception):
    """Raised instead of running a program that was compiled only for the cache."""


@dataclass(eq=False)
class CaptureRecord:
    """The number of captured programs and, of the last one, its guards and the code that it is of.

    `function` is the one that Dynamo compiles. `program` is None unless the program is kept on
    disk, and runs as it is there. `earlier` are the programs of all calls.
    """

    function: Callable[..., object] | None = None
    programs: int = 0
    guards: Sequence[GuardFilterEntry] | None = None
    traced: Sequence[CodeType] = ()
    program: StoredProgram | None = None
    earlier: EarlierPrograms = field(default_factory=EarlierPrograms)

    def clear(self) -> None:
        """Forget the programs."""
        self.programs, self.guards, self.traced, self.program = 0, None, (), None

    def begin_program(self) -> None:
        """Record that Dynamo has traced a program."""
        self.programs += 1
        self.traced, self.program = traced_code(), None

    def set_guards(self, guards: Sequence[GuardFilterEntry]) -> None:
        """Record the guards of a program."""
        self.guards = guards
        self.earlier.add_constants(guards)
