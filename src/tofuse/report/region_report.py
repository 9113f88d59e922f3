"""What the report says of a region: ops, bytes, executor, times."""

from __future__ import annotations

from dataclasses import dataclass

from tofuse.ir.graph import Loc, Op
from tofuse.ir.region import Region


@dataclass(frozen=True)
class RegionReport:
    """Ops that run as one kernel or one library call.

    `nbytes` counts the bytes read and written. `kernel` is the name of the generated kernel, None
    if there is none. `why` is the reason for the executor. `measured_us` is the median of several
    runs, including the call from Python; None without `measure=True`.
    """

    region: Region
    phase: str
    nbytes: int
    kernel: str | None
    predicted_us: float = 0.0
    measured_us: float | None = None
    executor: str = "llvm"
    why: str = ""

    @property
    def name(self) -> str:
        return self.region.name

    @property
    def ops(self) -> tuple[str, ...]:
        """The kinds of the ops, and the operator of a library call."""
        return tuple(map(op_name, self.region.ops))

    @property
    def locs(self) -> tuple[Loc, ...]:
        """The user's lines, without repeats."""
        return tuple(dict.fromkeys(op.loc for op in self.region.ops if op.loc is not None))

    @property
    def values(self) -> tuple[str, ...]:
        """The names of the ops' results, as verdicts use them."""
        return tuple(v.name for op in self.region.ops for v in op.results)

    @property
    def executor_label(self) -> str:
        """The executor's name for readers: a backend, a registered executor, or PyTorch."""
        return "PyTorch" if self.executor == "aten" else self.executor


def op_name(op: Op) -> str:
    """Return an op's kind, or the operator's name for a library call."""
    return str(op.attr("target")) if op.kind == "opaque" else op.kind
