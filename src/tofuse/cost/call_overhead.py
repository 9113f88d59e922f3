"""Whether a compiled call can be faster than eager's, whose calls have no guards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from tofuse.analysis.alias import is_aten_view, is_view
from tofuse.cost.library import op_us
from tofuse.cost.machine import Machine
from tofuse.cost.thresholds import (
    COLD_CALL_US,
    COLD_TRAINING_CALL_US,
    GUARDED_CALL_US,
    TRAINING_CALL_US,
)
from tofuse.ir.graph import Graph, Op

MachineOf = Callable[[Op], Machine]  # on which PyTorch runs an op


class Faster(Enum):
    """Who is predicted to run a program faster. `UNKNOWN`: the difference is small."""

    EAGER = "eager"
    COMPILED = "compiled"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Prediction:
    """Who is faster, and why; `trains` if the program has a backward.

    If the difference is small, `leans_to_eager` says who is faster by the predicted times alone.
    `pure`: to run the program once more, to time it, has no effect.
    """

    faster: Faster
    why: str = ""
    trains: bool = False
    leans_to_eager: bool = False
    pure: bool = False


COMPILED_IS_FASTER = Prediction(Faster.COMPILED, "it is predicted to be faster than eager")
PACKED_IS_FASTER = Prediction(Faster.COMPILED, "eager converts the weights that it has packed")


def predict_faster(
    captured: Graph,
    kernels: int,
    own_products: int,
    library_calls: int,
    own_us: float,
    machine_of: MachineOf,
    phase: str,
) -> Prediction:
    """Predict who runs a program faster, from its graph before all passes.

    `kernels` and `own_products` count the compiled program's calls that are not the library's,
    `library_calls` the others; `own_us` is its predicted time. Eager's time is an upper bound: each
    op that a composite call decomposes into counts as a call. PyTorch's kernels may be slower than
    predicted, so larger programs are timed. A backward has about twice the calls of its forward.
    Programs whose kernels draw random numbers stay compiled: eager draws others.
    """
    ops = [op for op in captured.ops if not is_view(op) and not is_aten_view(op)]
    is_lone_call = len(ops) == 1 and (ops[0].kind == "sum" or library_calls > 0)
    if not own_products and (not kernels or is_lone_call):
        return Prediction(Faster.EAGER, "it consists of library calls, which eager makes as fast")
    if _is_random(ops):
        return Prediction(
            Faster.COMPILED, "its kernels draw random numbers, and eager draws others"
        )
    eager_us = sum(op_us(op, machine_of(op)) for op in ops)
    trains = phase == "forward"
    if trains:
        overhead, is_small = TRAINING_CALL_US, 3 * eager_us < TRAINING_CALL_US
    else:
        overhead = GUARDED_CALL_US
        is_small = own_us < 2 * GUARDED_CALL_US and eager_us < GUARDED_CALL_US + own_us
    if is_small:
        why = f"it takes {eager_us:.0f} us at most, and the guards of a call {overhead:.0f} us"
        return Prediction(Faster.EAGER, why)
    calls = 3 if trains else 1
    if calls * eager_us < 2 * calls * own_us + (COLD_TRAINING_CALL_US if trains else COLD_CALL_US):
        compiled_us = own_us + overhead / calls
        why = f"predicted are {eager_us:.0f} us in eager and {compiled_us:.0f} us compiled"
        return Prediction(Faster.UNKNOWN, why, trains, eager_us < compiled_us)
    return COMPILED_IS_FASTER


def _is_random(ops: Sequence[Op]) -> bool:
    """Return whether a program draws a seed."""
    return any("seed" in str(op.attr("target")) for op in ops if op.kind == "opaque")
