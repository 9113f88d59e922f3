"""Which variables of the environment code reads."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from types import CodeType

from tofuse.capture.dynamo.code_names import constant_keys
from tofuse.config import ENVIRONMENT_OBJECTS, environment_variables

NAMES = frozenset(ENVIRONMENT_OBJECTS)
ENVIRONMENT_FILES = (  # of Python's own functions: their callers give the keys
    ENVIRONMENT_OBJECTS["getenv"].__code__.co_filename,  # type: ignore[attr-defined]
    type(ENVIRONMENT_OBJECTS["environ"]).get.__code__.co_filename,  # type: ignore[attr-defined]
)
NAMED = re.compile(rf"G\['\w+'\]|.*\.({'|'.join(NAMES)})")


def is_environment(value: object) -> bool:
    """Return whether a value is `os.environ`, `os.getenv` or one of their relatives."""
    return any(value is x for x in ENVIRONMENT_OBJECTS.values())


def is_named_environment(expression: str) -> bool:
    """Return whether a guard's expression is a global variable, or an attribute of `os`.

    The code that names it shows under which keys it reads the environment.
    """
    return NAMED.fullmatch(expression) is not None


@dataclass(eq=False)
class EnvironmentReads:
    """The names of the variables that code reads; `keys` is None if they are not known."""

    keys: set[str] | None = field(default_factory=set)

    def note_reads(self, code: CodeType, aliases: Collection[str]) -> None:
        """Add the variables that code reads. `aliases` are its global names of `os.environ`."""
        if self.keys is None or code.co_filename in ENVIRONMENT_FILES:
            return
        found = constant_keys(code, NAMES.union(aliases))
        self.keys = None if found is None else self.keys | found

    def texts(self) -> dict[str, str]:
        """Return the values of the variables, by name; of all variables if they are not known."""
        return {name: repr(value) for name, value in environment_variables(self.keys).items()}
