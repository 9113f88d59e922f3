"""Plan: the steps of one call of a compiled program."""

from tofuse.ir.plan.data import (
    Address,
    Allocate,
    Arena,
    Call,
    Launch,
    Parameter,
    Plan,
    Release,
    Result,
    Step,
    View,
    show_plan,
    show_step,
    variable,
)

__all__ = [
    "Address", "Allocate", "Arena", "Call", "Launch", "Parameter", "Plan", "Release", "Result",
    "Step", "View", "show_plan", "show_step", "variable",
]  # fmt: skip
