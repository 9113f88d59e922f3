"""Where Dynamo broke a program into several, or gave a function up, and why."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePath
from traceback import FrameSummary

from torch._dynamo.utils import counters, graph_break_reasons

from tofuse.capture.dynamo.code_objects import own_frame

OWN = own_frame.__code__.co_filename
SKIPPED = re.compile(r"frame skipped: (\S+) \((.*) line (\d+)\)")
BECAUSE = re.compile(r"Explanation: (.*)")


@contextmanager
def heard_breaks() -> Iterator[list[str]]:
    """A list that has, at the end, a sentence for each graph break that came up meanwhile."""
    found: list[str] = []
    known = len(graph_break_reasons)
    before = dict(counters["unimplemented"])
    try:
        yield found
    finally:
        told = [_break(r.reason, r.user_stack) for r in graph_break_reasons[known:]]
        given_up = [r for r, n in counters["unimplemented"].items() if n > before.get(r, 0)]
        told += [_skipped(r) for r in given_up if SKIPPED.search(r)]
        found += dict.fromkeys(told)


def _break(reason: str, stack: Sequence[FrameSummary]) -> str:
    frames = [f for f in stack if f.filename != OWN]
    place = f" at {PurePath(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"graph break{place}: {_why(reason)}"


def _skipped(reason: str) -> str:
    """Of a function that none of is compiled, for a break in a loop or a `with`, say."""
    places = SKIPPED.findall(reason)
    function, name, line = places[-1]
    return (
        f"not compiled: {function}, {PurePath(name).name}:{line}: {_why(reason.split('***')[-1])}"
    )


def _why(reason: str) -> str:
    """The first line and the first explanation, without Dynamo's hints."""
    kind = reason.strip().partition("\n")[0]
    because = BECAUSE.search(reason)
    return f"{kind}: {because[1]}" if because and because[1] not in kind else kind
