"""A key-value store of texts on disk, shared by processes."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tofuse.config import Config, user_cache
from tofuse.torch_internals.cache_artifacts import record_artifact

FORMAT = 1  # version of the file format, part of the folder's name
KIND_FOLDER = re.compile(r"([a-z]+)-\d+")
NAME = re.compile(r"[a-z]+-\d+/[0-9a-f]{32}\.json")  # of an entry's file
ENTRY = re.compile(r"[0-9a-f]{32}(\.json|[a-z0-9_]{8})")  # the latter of a writer that was killed
MAX_BYTES = 256 << 20  # of entries of one kind; beyond it, the least recently read are deleted


@dataclass(frozen=True)
class EntryKind:
    """How many entries of a kind a store has, and their size."""

    name: str
    entries: int
    nbytes: int


@dataclass(frozen=True)
class EntryFile:
    """The file of an entry."""

    path: Path

    def read(self) -> bytes:
        """Return the content; empty if the file is missing, or other users can write it."""
        with suppress(OSError), self.path.open("rb") as file:
            if _trusted(os.fstat(file.fileno())):
                return file.read()
        return b""


@dataclass(frozen=True)
class Store:
    """A folder of texts by key. Damaged entries and files of other users count as missing."""

    folder: Path
    max_bytes: int = MAX_BYTES

    def get(self, kind: str, key: Sequence[str]) -> str | None:
        """Return the text of a key, or None."""
        path = self.path(kind, key)
        try:
            entry = json.loads(EntryFile(path).read())
        except (ValueError, RecursionError):
            return None
        if not isinstance(entry, dict) or entry.get("key") != list(key):
            return None
        text = entry.get("text")
        if not isinstance(text, str) or entry.get("check") != _digest([text]):
            return None
        with suppress(OSError):
            os.utime(path)
        record_artifact(str(path.relative_to(self.folder)), EntryFile(path))
        return text

    def put(self, kind: str, key: Sequence[str], text: str) -> bool:
        """Store a text atomically; return whether it is stored. A full disk is no error."""
        name = str(self.path(kind, key).relative_to(self.folder))
        entry = json.dumps({"key": list(key), "text": text, "check": _digest([text])})
        return self.write(name, entry.encode())

    def write(self, name: str, content: bytes) -> bool:
        """Write an entry whose file has a name in the folder; return whether it is written.

        Raises ValueError for a name that `path` does not make.
        """
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no entry of a cache")
        path = self.folder / name
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            _trim(path.parent, self.max_bytes)
            number, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem)
            try:
                with os.fdopen(number, "wb") as file:
                    file.write(content)
                Path(temporary).chmod(0o644)  # for other users, if this one is root
                Path(temporary).replace(path)
                record_artifact(name, EntryFile(path))
                return True
            finally:
                Path(temporary).unlink(missing_ok=True)  # if it was not renamed
        return False

    def drop(self, kind: str, key: Sequence[str]) -> None:
        """Delete the entry of a key."""
        with suppress(OSError):
            self.path(kind, key).unlink()

    def kinds(self) -> list[EntryKind]:
        """Return the number and size of the entries of each kind, of all format versions."""
        found = []
        for name, files in self._files().items():
            sizes = [file.stat().st_size for file in files if file.exists()]
            found.append(EntryKind(name, len(sizes), sum(sizes)))
        return found

    def clear(self) -> list[EntryKind]:
        """Delete all entries; return what was deleted. Running processes keep what they loaded."""
        before = {kind.name: kind for kind in self.kinds()}
        for files in self._files().values():
            for file in files:
                with suppress(OSError):
                    file.unlink()
        after = {kind.name: kind for kind in self.kinds()}
        return [
            EntryKind(n, k.entries - after[n].entries, k.nbytes - after[n].nbytes)
            for n, k in before.items()
        ]

    def _files(self) -> dict[str, list[Path]]:
        """Return the files of entries by kind. A folder that is not ours has none."""
        files: dict[str, list[Path]] = {}
        for kind, folder in self._folders():
            entries = sorted(f for f in folder.iterdir() if ENTRY.fullmatch(f.name))
            files.setdefault(kind, []).extend(entries)
        return files

    def _folders(self) -> Iterator[tuple[str, Path]]:
        if not self.folder.is_dir():
            return
        for folder in sorted(self.folder.iterdir()):
            kind = KIND_FOLDER.fullmatch(folder.name)
            if kind is not None and folder.is_dir():
                yield kind[1], folder

    def path(self, kind: str, key: Sequence[str]) -> Path:
        """Return the file of a key."""
        return self.folder / f"{kind}-{FORMAT}" / f"{_digest(key)[:32]}.json"


def store_of(config: Config) -> Store:
    """Return the store on disk of a configuration."""
    return Store(config.cache_dir or user_cache())


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _trusted(status: os.stat_result) -> bool:
    """Whether only this user or root can have written a file, because its code is executed."""
    if os.name != "posix":
        return True
    writable = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return status.st_uid in (os.getuid(), 0) and not writable


@functools.cache  # once in a process
def _trim(folder: Path, max_bytes: int) -> None:
    """Delete the least recently read files down to half of `max_bytes`, if it is exceeded."""
    files = []
    for entry in os.scandir(folder):
        with suppress(OSError):  # another process has deleted it
            files.append((entry.stat(follow_symlinks=False), entry.path))
    total = sum(status.st_size for status, _ in files)
    if total <= max_bytes:
        return
    for status, path in sorted(files, key=lambda file: file[0].st_mtime):
        if total <= max_bytes // 2:
            return
        with suppress(OSError):
            Path(path).unlink()
            total -= status.st_size
