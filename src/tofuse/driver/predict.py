"""Predict whether a compiled program is faster than eager."""

from __future__ import annotations

from dataclasses import replace

import torch

from tofuse.capture.lower.convert import CapturedGraph
from tofuse.cost.call_overhead import Prediction, predict_faster
from tofuse.cost.machine import Machine
from tofuse.driver.link import LinkedProgram
from tofuse.driver.oracle import CostOracle
from tofuse.ir.executor import LIBRARY
from tofuse.ir.graph import Op, device_of
from tofuse.passes.expand_attention import ATTENTION_CALLS
from tofuse.torch_internals.operators import OpOverload, schema_of


def predict(
    captured: CapturedGraph, program: LinkedProgram, phase: str, oracle: CostOracle
) -> Prediction:
    """Predict whether a program is faster than eager, which runs the captured graph."""
    library = [a for r, a in program.assigned.items() if r.library]
    products = sum(a.name != LIBRARY for a in library)
    own_us = sum(a.us for a in program.assigned.values())
    kernels = len(program.generated)

    def machine_of(op: Op) -> Machine:
        machine = oracle.costs_of(device_of([op])).machine
        # eager's products are the library's, whose float32 rate is half of that of our kernels
        return replace(machine, flops=machine.flops / 2) if oracle.target.fast_gemm else machine

    calls = kernels, products, len(library) - products
    prediction = predict_faster(captured.graph, *calls, own_us, machine_of, phase)
    return replace(prediction, pure=_is_pure(captured))


def _is_pure(captured: CapturedGraph) -> bool:
    """Return whether to run a graph has no effect: no writes, random numbers, user's operators."""
    calls = [str(op.attr("target")) for op in captured.graph.ops if op.kind == "opaque"]
    return not captured.writes and all(map(_is_pure_call, calls))


def _is_pure_call(name: str) -> bool:
    if name in ATTENTION_CALLS:
        return True  # with dropout, PyTorch calls others
    operator: object = torch.ops
    for word in name.split("."):
        operator = getattr(operator, word, None)
    if not isinstance(operator, OpOverload) or operator.namespace not in ("aten", "tofuse"):
        return False
    return (
        not schema_of(operator).is_mutable
        and torch.Tag.nondeterministic_seeded not in operator.tags
    )
