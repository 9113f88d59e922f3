"""Code image: linked machine code that runs wherever it is mapped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class CodeImage:
    """Position-independent machine code, to be mapped at the start of a page.

    `entries` maps the name of a function to its offset. `slots` maps the name of a function outside
    of the image to the offset of the 8 bytes that hold its address.
    """

    code: bytes
    entries: Mapping[str, int]
    slots: Mapping[str, int]
