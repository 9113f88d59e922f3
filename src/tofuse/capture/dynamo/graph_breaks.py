"""Sentences about graph breaks and skipped functions, for the report."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePath
from traceback import FrameSummary

from torch.fx import GraphModule

from tofuse.capture.dynamo.code_objects import with_unique_code
from tofuse.torch_internals.dynamo import counters, graph_break_reasons

WRAPPER_FILE = with_unique_code.__code__.co_filename
SKIPPED = re.compile(r"frame skipped: (\S+) \((.*) line (\d+)\)")
HINT = re.compile(r"^\s*Hint: (.*)", re.MULTILINE)
REPORT = "Please report an issue"  # a hint about torch, not about the program
EXPLANATION = re.compile(r"Explanation: (.*)")
FSDP_FOLDER = "torch/distributed/fsdp/_fully_shard"
FSDP_HOOKS = (
    "the hooks of fully_shard run between compiled parts, and Dynamo compiles nothing of a "
    "checkpoint (torch.utils.checkpoint) around a sharded module"
)
SHARD_CHECKPOINTS = (
    "Shard the module that calls the checkpoint, not the one in it: "
    "fully_shard(checkpoint_wrapper(block)). Nothing if there is no checkpoint."
)


@dataclass(frozen=True)
class GraphBreak:
    """A graph break: Dynamo's reason and hints, and the user's line."""

    reason: str
    frame: FrameSummary | None
    hints: tuple[str, ...]


def bucket_notes(gm: GraphModule) -> tuple[str, ...]:
    """Return a note if Dynamo cut this program out of one inside DistributedDataParallel."""
    reason = getattr(gm, "compile_subgraph_reason", None)
    if not str(getattr(reason, "reason", "")).startswith("DDPOptimizer"):
        return ()
    return (
        "a part of a program that Dynamo cuts where DistributedDataParallel's buckets end: the "
        "gradients of a bucket are reduced while the backward of the next part runs. Larger "
        "bucket_cap_mb makes fewer parts; torch._dynamo.config.optimize_ddp = False makes one, "
        "whose gradients all come at its end",
    )


def graph_breaks() -> list[GraphBreak]:
    """Return the graph breaks of this process."""
    return [_graph_break(r.reason, r.user_stack) for r in graph_break_reasons]


def first_explanation(reason: str) -> str:
    """Return the first line and the first explanation of a reason, without Dynamo's hints."""
    kind = reason.strip().partition("\n")[0]
    explanation = EXPLANATION.search(reason)
    return f"{kind}: {explanation[1]}" if explanation and explanation[1] not in kind else kind


def num_graph_breaks() -> int:
    """Return how many graph breaks and skipped frames there were since Dynamo's last reset."""
    return len(graph_break_reasons) + sum(counters["unimplemented"].values())


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
    found = _graph_break(reason, stack)
    if found.reason == FSDP_HOOKS:
        return f"graph break: {FSDP_HOOKS}. {SHARD_CHECKPOINTS}"
    frame = found.frame
    place = "" if frame is None else f" at {PurePath(frame.filename).name}:{frame.lineno}"
    return f"graph break{place}: {found.reason}"


def _graph_break(reason: str, stack: Sequence[FrameSummary]) -> GraphBreak:
    frame = next((f for f in reversed(stack) if f.filename != WRAPPER_FILE), None)
    if frame is not None and FSDP_FOLDER in PurePath(frame.filename).as_posix():
        return GraphBreak(FSDP_HOOKS, frame, (SHARD_CHECKPOINTS,))
    hints = tuple(h for h in HINT.findall(reason) if not h.startswith(REPORT))
    return GraphBreak(first_explanation(reason), frame, hints)


def _describe_skip(reason: str) -> str:
    """Describe a function of which Dynamo compiles nothing, such as for a break in a loop."""
    skipped = SKIPPED.findall(reason)
    function, name, line = skipped[-1]
    why = first_explanation(reason.split("***")[-1])
    return f"not compiled: {function}, {PurePath(name).name}:{line}: {why}"
