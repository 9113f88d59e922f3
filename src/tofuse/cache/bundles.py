"""Bundles of `torch.compiler.save_cache_artifacts`: what they contain goes to the cache on disk."""

from __future__ import annotations

from tofuse.cache.store import Store
from tofuse.config import make_config, user_cache
from tofuse.torch_internals.cache_artifacts import register_artifacts


def write_entry(name: str, content: bytes) -> None:
    """Write an entry of a bundle to the folder of the environment, or to the user's cache."""
    Store(make_config({}).cache_dir or user_cache()).write(name, content)


register_artifacts(write_entry)
