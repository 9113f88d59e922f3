"""Whether two kernels are better apart: where loops change between them, by what each costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from tofuse.cost.nest import Cost
from tofuse.ir.dims import hint
from tofuse.ir.graph import Op
from tofuse.ir.kernel import Kernel

UNEVEN = 1.5  # times what long vectors of neighbours would take
LITTLE_US = 5.0  # about two launches: less is not worth a cut
GAIN = 0.9  # of what one kernel takes, that two may
Fits = Callable[[Kernel], "str | None"]  # why a kernel cannot be scheduled; None where it can
Costs = Callable[[Kernel], "Cost | None"]  # None where it cannot


@dataclass(frozen=True)
class Judges:
    """Whom to ask of kernels on which device."""

    cpu: Fits
    gpu: Fits | None
    costs: Costs | None  # on the CPU
    exact: bool  # whether halves are rounded after every op

    def on(self, device: str) -> Fits | None:
        return self.cpu if device == "cpu" else self.gpu

    def judge(self, kernel: Kernel, device: str) -> tuple[str | None, Cost | None]:
        """Why a kernel is none, and else what it costs, where that is known."""
        fits = self.on(device)
        reason = None if fits is None else fits(kernel)
        if reason is not None or device != "cpu" or self.costs is None:
            return reason, None
        return None, self.costs(kernel)


def is_uneven(cost: Cost | None) -> TypeGuard[Cost]:
    """Whether much of a kernel's time goes into elements that lie apart and lanes that idle."""
    return cost is not None and cost.us > UNEVEN * cost.even_us + LITTLE_US


def loops_change(a: Sequence[Op], b: Sequence[Op]) -> bool:
    """Whether two kernels run over different numbers of elements, or lay results differently.

    What is computed once a group or a channel keeps axes apart that are one axis in memory; read
    from a small tensor, it does not. A result laid across the rows of the sums before it is
    turned in tiles, if it is apart from them.
    """
    x, y = max(map(_elements, a)), max(map(_elements, b))
    return x != y or len({_order(op) for op in (*a, *b) if _elements(op) == x}) > 1


def _elements(op: Op) -> int:
    return max((hint(v.type.numel) for v in (*op.inputs, *op.results)), default=0)


def _order(op: Op) -> tuple[int, ...]:
    """The axes of what an op makes, those with the largest strides first."""
    strides = [hint(s) for s in op.result.layout]
    return tuple(sorted(range(len(strides)), key=lambda k: -strides[k]))


def dearer(together: Cost | None, apart: tuple[Cost | None, Cost | None]) -> str | None:
    """Why two kernels stay two; None where one is as good."""
    a, b = apart
    if together is None or a is None or b is None or a.us + b.us >= GAIN * together.us:
        return None
    return f"short or strided rows in one kernel: {together.us:.0f} us, apart {a.us + b.us:.0f} us"
