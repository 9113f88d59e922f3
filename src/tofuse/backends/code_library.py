"""Where the machine code of CPU kernels goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tofuse.disk_store import Store
from tofuse.ir.machine_function import Entry


@dataclass(frozen=True)
class LoadedText:
    """The digest of a module's text, and its functions, which keep the machine code."""

    digest: str
    functions: list[Entry]


class CodeLibrary(Protocol):
    """Where machine code goes: `LinkedCode` of this process, or code collected for a file."""

    def compile(self, texts: Sequence[str], store: Store | None, threads: int) -> None:
        """Compile modules that will be loaded, on several threads."""

    def load(self, text: str, names: Sequence[str], store: Store | None = None) -> list[Entry]:
        """Return the functions of a module; raise CompileError."""

    def load_text(self, text: str, names: Sequence[str], store: Store | None) -> LoadedText:
        """Return the functions of a module, and its digest, the key of `load_by_digest`."""

    def load_by_digest(self, key: str, names: Sequence[str], store: Store) -> list[Entry]:
        """Return the functions of the module with this digest."""
