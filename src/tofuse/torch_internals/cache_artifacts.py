"""torch's bundles of caches: `torch.compiler.save_cache_artifacts` and `load_cache_artifacts`."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from types import new_class
from typing import Protocol

from tofuse.torch_internals.private_names import always, private, stand_in

LOST = "torch.compiler.save_cache_artifacts does not contain programs of tofuse"
MODULE = "torch.compiler._cache"
TYPE = "tofuse"  # of our artifacts

_ignore: Callable[..., object] = always(None)
_missing = stand_in(f"{MODULE}.CacheArtifact")
_Artifact: type = private(MODULE, "CacheArtifact", LOST, _missing)
_register: Callable[[type], object] = private(
    MODULE, "CacheArtifactFactory.register", LOST, _ignore
)
_record: Callable[[str, str, object], object] = private(
    MODULE, "CacheArtifactManager.record_artifact", LOST, _ignore
)
CAN_BUNDLE = _Artifact is not _missing and _register is not _ignore and _record is not _ignore


class ArtifactFile(Protocol):
    """A file whose content torch saves. Files are equal if their paths are."""

    def read(self) -> bytes:
        """Return the content; empty if the file is gone."""


class _Stored(Protocol):
    key: str
    content: bytes


def record_artifact(key: str, file: ArtifactFile) -> None:
    """Add an entry of a cache to the bundle that torch saves; it is read when torch saves it.

    torch holds all artifacts as long as the process, so they do not hold their content.
    """
    if CAN_BUNDLE:
        _record(TYPE, key, file)


def register_artifacts(populate: Callable[[str, bytes], None]) -> None:
    """Let torch load bundles that contain our entries: `populate` receives each. Call it once."""

    def init(self: object, key: str, content: ArtifactFile | bytes) -> None:
        self.__dict__.update(key=key, source=content)

    def write(self: _Stored) -> None:
        if self.content:
            populate(self.key, self.content)

    def fill(body: MutableMapping[str, object]) -> None:
        body["type"] = staticmethod(lambda: TYPE)
        body["encode"] = staticmethod(lambda file: file)
        body["content"] = property(lambda self: _content(self.source))
        body["__init__"], body["populate_cache"] = init, write
        body["__eq__"] = lambda self, other: vars(self) == vars(other)
        body["__hash__"] = lambda self: hash((self.key, self.source))

    if CAN_BUNDLE:
        _register(new_class("TofuseArtifact", (_Artifact,), {}, fill))


def _content(source: ArtifactFile | bytes) -> bytes:
    """Return the content of an entry that this process has recorded, or of a bundle."""
    return source if isinstance(source, bytes) else source.read()
