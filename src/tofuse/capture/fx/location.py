"""The user's source line of an FX node, with its fusion hint."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch
from torch.fx import Node

from tofuse.config import PACKAGE
from tofuse.hints import call_count, fusion_hint_of
from tofuse.ir.graph import Loc

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)[^\n]*\n(?P<code>[^\n]*)', re.M)
_PACKAGE_PATH = str(PACKAGE)
_LIBRARY_PATHS = (str(Path(torch.__file__).parent), _PACKAGE_PATH)


def is_library_file(path: str) -> bool:
    """Return whether a source file is one of torch or of this package."""
    return path.startswith(_LIBRARY_PATHS)


def source_location(node: Node) -> Loc | None:
    """Return the innermost frame of the user's code, or else of a package other than torch."""
    trace, hint, times = node.meta.get("stack_trace"), fusion_hint_of(node), call_count(node)
    loc = _innermost_user_frame(trace) if isinstance(trace, str) else None
    if not hint and times == 1:
        return loc
    return replace(loc or Loc("<unknown>", 0), fusion_hint=hint, call_count=times)


@lru_cache(maxsize=4096)  # the ops of one line share their trace
def _innermost_user_frame(trace: str) -> Loc | None:
    frames = [Loc(m["file"], int(m["line"]), m["code"].strip()) for m in _FRAME.finditer(trace)]
    callers = [f for f in frames if not is_library_file(f.file)]
    user = [f for f in callers if "site-packages" not in f.file]
    chosen = user or callers or [f for f in frames if not f.file.startswith(_PACKAGE_PATH)]
    return chosen[-1] if chosen else None
