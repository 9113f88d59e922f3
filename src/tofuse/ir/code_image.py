"""Code image: linked machine code that runs wherever it is mapped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class CodeImage:
    """Position-independent machine code, to be mapped at the start of a page.

    `entries` are the offsets of functions by name. `slots` are the offsets of 8 bytes each that
    must hold the address of a function outside of the image, by its name.
    """

    code: bytes
    entries: Mapping[str, int]
    slots: Mapping[str, int]
