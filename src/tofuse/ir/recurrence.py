"""The step of a recurrence: elementwise ops from states and inputs to the next states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from tofuse.ir.graph import Attr, Op, Scalar
from tofuse.ir.types import DType

StepOperand = Union[int, Scalar]  # the number of a value of the step, or a constant  # noqa: UP007


@dataclass(frozen=True, eq=False)
class StepOp:
    """An elementwise op of a step."""

    kind: str
    operands: tuple[StepOperand, ...]
    dtype: DType


@dataclass(frozen=True, eq=False)
class Recurrence:
    """The step of a loop over time.

    Its values are numbered: the `states` before the step, then the inputs, then the results of
    `body`. After the step, state k is the value of number `next[k]`.
    """

    states: int
    body: tuple[StepOp, ...]
    next: tuple[int, ...]

    def attrs(self, state: int, steps: int) -> dict[str, Attr]:
        """Return the attributes of the op `recurrence` that returns one of the states."""
        return {
            "states": self.states,
            "steps": steps,
            "body": tuple(map(_step_attr, self.body)),
            "next": self.next,
            "state": state,
        }


def recurrence_of(op: Op) -> Recurrence:
    """Return the step of an op `recurrence`."""
    body = op.attr("body")
    assert isinstance(body, tuple)
    return Recurrence(op.int("states"), tuple(map(_read_step, body)), op.ints("next"))


def _step_attr(op: StepOp) -> Attr:
    """Return `(kind, dtype, operands)`; a constant operand is a tuple of itself."""
    operands = (x if isinstance(x, int) else (x.value,) for x in op.operands)
    return op.kind, op.dtype, tuple(operands)


def _read_step(attr: Attr) -> StepOp:
    assert isinstance(attr, tuple)
    kind, dtype, operands = attr
    assert isinstance(kind, str) and isinstance(dtype, DType) and isinstance(operands, tuple)
    return StepOp(kind, tuple(map(_read_operand, operands)), dtype)


def _read_operand(attr: Attr) -> StepOperand:
    if isinstance(attr, int):
        return attr
    assert isinstance(attr, tuple)
    (value,) = attr
    assert isinstance(value, (bool, int, float))
    return Scalar(value)
