"""Bundles of `torch.compiler.save_cache_artifacts`: what they contain goes to the cache on disk."""

from __future__ import annotations

import warnings

from tofuse.config import make_config
from tofuse.disk_store import store_of
from tofuse.errors import TofuseWarning
from tofuse.torch_internals.cache_artifacts import register_artifacts


def write_entry(name: str, content: bytes) -> None:
    """Write an entry of a bundle to the folder of the environment, or to the user's cache."""
    try:
        store_of(make_config({})).write(name, content)
    except ValueError as error:  # the bundle's other entries are loaded
        warnings.warn(f"a bundle has an entry that is not written: {error}", TofuseWarning, 2)


register_artifacts(write_entry)
