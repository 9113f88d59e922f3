"""Small texts kept on disk from process to process: measured costs, chosen kernels."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FORMAT = 1  # of the files; another number is another file


@dataclass(frozen=True)
class Store:
    """A folder of texts by key. What is damaged, or another key's, is not there at all."""

    folder: Path

    def get(self, kind: str, key: Sequence[str]) -> str | None:
        """The text kept under a key, or None."""
        try:
            found = json.loads(self.path(kind, key).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        if not isinstance(found, dict) or found.get("key") != list(key):
            return None
        text = found.get("text")
        if not isinstance(text, str) or found.get("check") != _digest([text]):
            return None
        return text

    def put(self, kind: str, key: Sequence[str], text: str) -> None:
        """Keep a text; readers see the old file or the new one whole. A full disk is no error."""
        path = self.path(kind, key)
        content = json.dumps({"key": list(key), "text": text, "check": _digest([text])})
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
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
