"""Cost model of PyTorch's operators: matrix products by arithmetic, all others by bytes."""

from __future__ import annotations

import math

from tofuse.analysis.alias import is_aten_view, is_view
from tofuse.cost.bandwidth import traffic_us
from tofuse.cost.machine import MMAP_THRESHOLD, Machine
from tofuse.cost.memory_traffic import op_bytes, value_bytes
from tofuse.ir.dims import size_hint
from tofuse.ir.graph import Op
from tofuse.ir.region import Region
from tofuse.ops.table import OPS, Pattern

PASSES = 3.0  # transfers of the operands of an operator without a model, such as softmax, pooling
FREE_OPERANDS = 3  # tensor operands that the cost of a call includes
OPERAND_COST = 0.15  # of a call, per further operand; measured in docs/measurements.md


def library_us(region: Region, machine: Machine, pooled: bool = False) -> float:
    """Return the microseconds of a region run op by op through PyTorch, on its device's `machine`.

    With `pooled`, results are written into memory of the pool, without new pages.
    """
    running = (op for op in region.ops if not is_view(op))
    running = (op for op in running if OPS[op.kind].pattern is not Pattern.SOURCE)
    return sum(op_us(op, machine, pooled) for op in running)


def op_us(op: Op, machine: Machine, pooled: bool = False) -> float:
    """Return the microseconds of an op that PyTorch runs."""
    if op.kind == "opaque" and str(op.attr("target")).startswith("tofuse.seed."):
        return machine.call_us * 0.5
    if is_aten_view(op):
        return machine.call_us
    call_us = machine.call_us * (1 + OPERAND_COST * max(0, len(op.inputs) - FREE_OPERANDS))
    fresh = 0 if pooled else sum(n for v in op.results if (n := value_bytes(v)) >= MMAP_THRESHOLD)
    return call_us + fresh / machine.fresh_rate / 1e3 + _run_us(op, machine)


def _run_us(op: Op, machine: Machine) -> float:
    """Return the microseconds of an op without call overhead and page faults."""
    memory_us = traffic_us(machine, op_bytes(op))
    if op.kind not in ("opaque", "contract"):
        points = max((size_hint(v.type.numel) for v in (*op.inputs, *op.results)), default=0)
        arithmetic_us = points * OPS[op.kind].cost * machine.ns["cheap"] / 1e3 / machine.threads
        return max(memory_us, arithmetic_us)
    flops = library_flops(op)
    if flops:
        is_half = op.inputs[0].dtype.is_reduced_float
        rate = machine.half_flops if is_half else machine.flops
        return memory_us + flops / (rate * machine.threads) / 1e3
    return PASSES * memory_us


def library_flops(op: Op) -> float:
    """Return the arithmetic of a matrix product, convolution or attention; 0 for other calls."""
    name = "mm" if op.kind == "contract" else str(op.attr("target")).split(".")[1]
    shapes = [tuple(map(size_hint, v.shape)) for v in op.inputs]
    out = math.prod(map(size_hint, op.results[0].shape)) if op.results else 0
    match name:
        case "mm" | "bmm" | "mv" | "dot":
            return 2.0 * out * shapes[0][-1]
        case "addmm" | "baddbmm" | "addmv":
            return 2.0 * out * shapes[min(1, len(shapes) - 2)][-1]
        case "convolution" | "packed_convolution" | "mkldnn_convolution" if len(shapes) > 1:
            return 2.0 * out * math.prod(shapes[1][1:])
        case "convolution_backward" if len(shapes) > 2:
            grad, weight = math.prod(shapes[0]), math.prod(shapes[2][1:])
            return 2.0 * grad * weight * len(op.results)
        case _ if "attention" in name and len(shapes) > 1 and len(shapes[0]) == 4:
            per = 4.0 * math.prod(shapes[0]) * shapes[1][2]
            return per * 2.5 if "backward" in name else per
        case _:
            return 0.0
