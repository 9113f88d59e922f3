"""torch's bundles of caches: `torch.compiler.save_cache_artifacts` and `load_cache_artifacts`."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from types import new_class

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
_record: Callable[[str, str, bytes], object] = private(
    MODULE, "CacheArtifactManager.record_artifact", LOST, _ignore
)
CAN_BUNDLE = _Artifact is not _missing and _register is not _ignore and _record is not _ignore


def record_artifact(key: str, content: bytes) -> None:
    """Add an entry of a cache to the bundle that torch saves."""
    if CAN_BUNDLE:
        _record(TYPE, key, content)


def register_artifacts(populate: Callable[[str, bytes], None]) -> None:
    """Let torch load bundles that contain our entries: `populate` receives each. Call it once."""

    def fill(body: MutableMapping[str, object]) -> None:
        body["type"] = staticmethod(lambda: TYPE)
        body["populate_cache"] = lambda self: populate(self.key, self.content)

    if CAN_BUNDLE:
        _register(new_class("TofuseArtifact", (_Artifact,), {}, fill))
