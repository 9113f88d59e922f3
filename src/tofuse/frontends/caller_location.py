"""The user's line that a call into the package came from."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import FrameType

from tofuse.ir.graph import Loc

_PACKAGE = str(Path(__file__).parent.parent)


def user_line() -> Loc | None:
    """The innermost frame outside the package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_PACKAGE):
            code = linecache.getline(file, frame.f_lineno).strip()
            return Loc(file, frame.f_lineno, code)
        frame = frame.f_back
    return None
