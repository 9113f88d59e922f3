"""Evaluate candidate regions as a test says."""

from collections.abc import Callable

from tofuse.cost.kernel_cost import Evaluation
from tofuse.fusion.partition.region_evaluator import RegionEvaluator
from tofuse.ir.kernel import Kernel
from tofuse.ir.region import Reason


def accept_all(kernel: Kernel) -> None:
    """Accept a kernel."""


def rejecting(reject: Callable[[Kernel], Reason | None] = accept_all) -> RegionEvaluator:
    """Return an evaluator that knows no costs; `reject` returns why it rejects a kernel."""
    return RegionEvaluator(lambda kernel, device: Evaluation(reject(kernel)))
