"""Texts kept on disk from process to process: measured costs, chosen kernels, machine code."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FORMAT = 1  # of the files; another number is another file
MOST_BYTES = 256 << 20  # of texts of one kind; beyond, those read longest ago are forgotten


@dataclass(frozen=True)
class Store:
    """A folder of texts by key. What is damaged, another key's or another user's is not there."""

    folder: Path

    def get(self, kind: str, key: Sequence[str]) -> str | None:
        """The text kept under a key, or None."""
        path = self.path(kind, key)
        try:
            with path.open(encoding="utf-8") as file:
                if not _trusted(os.fstat(file.fileno())):
                    return None
                found = json.load(file)
        except (OSError, ValueError):
            return None
        if not isinstance(found, dict) or found.get("key") != list(key):
            return None
        text = found.get("text")
        if not isinstance(text, str) or found.get("check") != _digest([text]):
            return None
        with suppress(OSError):
            os.utime(path)
        return text

    def put(self, kind: str, key: Sequence[str], text: str) -> None:
        """Keep a text; readers see the old file or the new one whole. A full disk is no error."""
        path = self.path(kind, key)
        content = json.dumps({"key": list(key), "text": text, "check": _digest([text])})
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            _trim(path.parent)
            number, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem)
            try:
                with os.fdopen(number, "w", encoding="utf-8") as file:
                    file.write(content)
                Path(name).replace(path)
            except OSError:
                Path(name).unlink(missing_ok=True)

    def drop(self, kind: str, key: Sequence[str]) -> None:
        """Forget a key."""
        with suppress(OSError):
            self.path(kind, key).unlink()

    def path(self, kind: str, key: Sequence[str]) -> Path:
        """The file of a key."""
        return self.folder / f"{kind}-{FORMAT}" / f"{_digest(key)[:32]}.json"


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _trusted(found: os.stat_result) -> bool:
    """Whether nobody but this user, or the system's, can have written a file: code is run."""
    if os.name != "posix":
        return True
    shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return found.st_uid in (os.getuid(), 0) and not shared


@functools.cache  # once in a process
def _trim(folder: Path) -> None:
    """Forget what was read longest ago, down to half of what may be kept, if that is exceeded."""
    files = [(entry.stat(), entry.path) for entry in os.scandir(folder)]
    left = sum(found.st_size for found, _ in files)
    if left <= MOST_BYTES:
        return
    for found, path in sorted(files, key=lambda file: file[0].st_mtime):
        if left <= MOST_BYTES // 2:
            return
        Path(path).unlink(missing_ok=True)
        left -= found.st_size
