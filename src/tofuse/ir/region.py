"""Regions, which become one kernel each, and verdicts on the edges between ops."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from tofuse.ir.graph import Graph, Loc, Op, Value
from tofuse.ir.rules import Reason

REQUESTED = {True: ", as requested by fuse()", False: ", although fuse() requests it"}


class Side(Enum):
    """What of a duplicated chain of products a result is: no kernel has results of two sides.

    The rows of the original are the columns of its copy. Both read the factors.
    """

    ORIGINAL = auto()
    COPY = auto()
    FACTORS = auto()


@dataclass(frozen=True)
class Verdict:
    """Whether two ops were fused into one kernel, the reason, and the predicted savings.

    `bytes_saved` is memory traffic, `recompute` repeated work in additions, `predicted_us`
    microseconds saved (negative: lost). `requested`: a `fuse` hint covers both ops.
    """

    producer: str
    consumer: str
    fused: bool
    reason: Reason
    bytes_saved: int = 0
    launches_saved: int = 0
    recompute: float = 0.0
    predicted_us: float = 0.0
    loc: Loc | None = None
    requested: bool = False

    @property
    def rule(self) -> str:
        """The reason as text."""
        return f"{self.reason}{REQUESTED[self.fused] if self.requested else ''}"

    def __repr__(self) -> str:
        word = "fused" if self.fused else "not fused"
        at = f"  # {self.loc}" if self.loc else ""
        saved = f" ({self.bytes_saved} bytes saved)" if self.bytes_saved else ""
        return f"{self.producer} -> {self.consumer}: {word}: {self.rule}{saved}{at}"


@dataclass(frozen=True, eq=False)
class Region:
    """The ops of one kernel in program order.

    `outputs` are the values that other regions read or the program returns. A library region
    holds one opaque op, a kernel region none.
    """

    name: str
    ops: tuple[Op, ...]
    outputs: tuple[Value, ...]
    library: bool = False

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values that are read but not defined in the region, in order of first use."""
        defined = {r for op in self.ops for r in op.results}
        return tuple(dict.fromkeys(v for op in self.ops for v in op.inputs if v not in defined))


def show_verdict(v: Verdict) -> str:
    """Return one line, such as

    `edge v0 -> v1 fused: same loops; bytes 64; launches 1; recompute 0.0; us 5.0 # at m.py:3`.
    """
    word = "fused" if v.fused else "not fused"
    counts = f"bytes {v.bytes_saved}; launches {v.launches_saved}; recompute {v.recompute!r}"
    at = f" # at {v.loc!r}" if v.loc else ""
    return (
        f"edge {v.producer} -> {v.consumer} {word}: {v.rule}; {counts}; us {v.predicted_us!r}{at}"
    )


def show_region(region: Region, graph: Graph) -> str:
    order = {op: k for k, op in enumerate(graph.ops)}
    # an op is named by its first result, or by its position if it has none
    ops = " ".join(op.results[0].name if op.results else f"#{order[op]}" for op in region.ops)
    outputs = " ".join(v.name for v in region.outputs)
    return f"{'call' if region.library else 'kernel'} {region.name}: {ops} -> {outputs}".rstrip()
