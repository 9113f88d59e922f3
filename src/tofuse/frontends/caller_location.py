"""Find the user's line from which the package was called."""

from __future__ import annotations

import linecache
import sys
from types import FrameType

from tofuse.config import PACKAGE
from tofuse.ir.graph import Loc

_PACKAGE = str(PACKAGE)


def user_line() -> Loc | None:
    """Return the location of the innermost frame outside the package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_PACKAGE):
            code = linecache.getline(file, frame.f_lineno).strip()
            return Loc(file, frame.f_lineno, code)
        frame = frame.f_back
    return None
