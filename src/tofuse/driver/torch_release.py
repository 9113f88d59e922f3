"""Which releases of torch tofuse runs on."""

from __future__ import annotations

import functools
import warnings

import torch

from tofuse.errors import TofuseWarning, UnsupportedError

OLDEST, NEWEST = (2, 11), (2, 15)  # tested: docs/support.md


@functools.cache
def check_torch(release: str = torch.__version__) -> None:
    """Raise UnsupportedError for a release of torch before `OLDEST`; warn once after `NEWEST`."""
    major, minor = (int(p) for p in release.split("+")[0].split(".")[:2])
    if (major, minor) < OLDEST:
        raise UnsupportedError(
            f"tofuse supports torch from {release_text(OLDEST)} on, not {release}; "
            "install a newer release"
        )
    if (major, minor) > NEWEST:
        warnings.warn(
            f"tofuse is tested with torch {release_text(OLDEST)} to {release_text(NEWEST)}, "
            f"not with {release}",
            TofuseWarning,
            stacklevel=3,
        )


def release_text(release: tuple[int, int]) -> str:
    """Return a release as torch writes it."""
    return ".".join(map(str, release))
