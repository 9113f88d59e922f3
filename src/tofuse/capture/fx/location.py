"""The user's line behind an FX node, and the hint that stands around it."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch
from torch.fx import Node

from tofuse.config import PACKAGE
from tofuse.hints import hint_of, times_of
from tofuse.ir.graph import Loc

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)[^\n]*\n(?P<code>[^\n]*)', re.M)
_OURS = str(PACKAGE)
_NOT_THEIRS = (str(Path(torch.__file__).parent), _OURS)


def locate(node: Node) -> Loc | None:
    """The innermost frame of the user's own code, or else of a package that is not torch."""
    trace, hint, times = node.meta.get("stack_trace"), hint_of(node), times_of(node)
    loc = _parse(trace) if isinstance(trace, str) else None
    if not hint and times == 1:
        return loc
    return replace(loc or Loc("<unknown>", 0), hint=hint, times=times)


@lru_cache(maxsize=4096)  # the ops of one line share their trace
def _parse(trace: str) -> Loc | None:
    frames = [Loc(m["file"], int(m["line"]), m["code"].strip()) for m in _FRAME.finditer(trace)]
    outside = [f for f in frames if not f.file.startswith(_NOT_THEIRS)]
    own = [f for f in outside if "site-packages" not in f.file]
    chosen = own or outside or [f for f in frames if not f.file.startswith(_OURS)]
    return chosen[-1] if chosen else None
