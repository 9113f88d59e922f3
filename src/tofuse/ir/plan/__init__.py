"""Plan: the flat list of the steps of one call."""

from tofuse.ir.plan.data import (
    Allocate,
    Arena,
    Call,
    Launch,
    Parameter,
    Plan,
    Release,
    Step,
    View,
    show_plan,
    show_step,
)

__all__ = [
    "Allocate", "Arena", "Call", "Launch", "Parameter", "Plan", "Release", "Step", "View",
    "show_plan", "show_step",
]  # fmt: skip
