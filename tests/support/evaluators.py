"""Evaluate candidate regions as a test says."""

from collections.abc import Callable

from tofuse.backends.backend_of import backend_of
from tofuse.cost.kernel_cost import Evaluation
from tofuse.cost.machine import Machine
from tofuse.cost.target_costs import TargetCosts
from tofuse.driver.pipeline import BACKENDS, KERNEL_PASSES
from tofuse.fusion.lowering_memo import LoweringMemo
from tofuse.fusion.partition.region_evaluator import RegionEvaluator
from tofuse.ir.kernel import Kernel
from tofuse.ir.rules import Reason
from tofuse.ir.schedule import Target


def accept_all(kernel: Kernel) -> None:
    """Accept a kernel."""


def rejecting(reject: Callable[[Kernel], Reason | None] = accept_all) -> RegionEvaluator:
    """Return an evaluator that knows no costs; `reject` returns why it rejects a kernel."""
    memo = LoweringMemo(KERNEL_PASSES)
    return RegionEvaluator(lambda kernel, device: Evaluation(reject(kernel)), costs_of, memo)


def costs_of(device: str) -> TargetCosts:
    """Return the costs of a target with the assumed machine."""
    return backend_of(device, Target(8, 1), Machine(), BACKENDS).costs
