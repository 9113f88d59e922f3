"""Sentences about graph breaks and skipped functions, for the report."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePath
from traceback import FrameSummary

from tofuse.capture.dynamo.code_objects import with_unique_code
from tofuse.torch_internals.dynamo import counters, graph_break_reasons

WRAPPER_FILE = with_unique_code.__code__.co_filename
SKIPPED = re.compile(r"frame skipped: (\S+) \((.*) line (\d+)\)")
EXPLANATION = re.compile(r"Explanation: (.*)")


@contextmanager
def record_graph_breaks() -> Iterator[list[str]]:
    """Yield a list that holds, at exit, one sentence for each graph break inside the `with`."""
    sentences: list[str] = []
    first_new = len(graph_break_reasons)
    counts_before = dict(counters["unimplemented"])
    try:
        yield sentences
    finally:
        new = [_describe_break(r.reason, r.user_stack) for r in graph_break_reasons[first_new:]]
        for reason, count in counters["unimplemented"].items():
            if count > counts_before.get(reason, 0) and SKIPPED.search(reason):
                new.append(_describe_skip(reason))
        sentences += dict.fromkeys(new)


def _describe_break(reason: str, stack: Sequence[FrameSummary]) -> str:
    frames = [f for f in stack if f.filename != WRAPPER_FILE]
    place = f" at {PurePath(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"graph break{place}: {_first_explanation(reason)}"


def _describe_skip(reason: str) -> str:
    """Describe a function of which Dynamo compiles nothing, such as for a break in a loop."""
    skipped = SKIPPED.findall(reason)
    function, name, line = skipped[-1]
    why = _first_explanation(reason.split("***")[-1])
    return f"not compiled: {function}, {PurePath(name).name}:{line}: {why}"


def _first_explanation(reason: str) -> str:
    """Return the first line and the first explanation of a reason, without Dynamo's hints."""
    kind = reason.strip().partition("\n")[0]
    explanation = EXPLANATION.search(reason)
    return f"{kind}: {explanation[1]}" if explanation and explanation[1] not in kind else kind
