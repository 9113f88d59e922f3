"""Predict whether a compiled program is faster than eager."""

from __future__ import annotations

from tofuse.cost.call_overhead import Prediction, predict_faster
from tofuse.cost.machine import Machine
from tofuse.driver.link import LinkedProgram
from tofuse.ir.executor import LIBRARY
from tofuse.ir.graph import Graph


def predict(captured: Graph, program: LinkedProgram, phase: str, machine: Machine) -> Prediction:
    """Predict whether a program is faster than eager, which runs the captured graph."""
    library = [a for r, a in program.assigned.items() if r.library]
    products = sum(a.name != LIBRARY for a in library)
    own_us = sum(a.us for a in program.assigned.values())
    kernels = len(program.generated)
    return predict_faster(captured, kernels, products, own_us, machine, phase)
