"""What a region costs that PyTorch runs: a matrix product by its arithmetic, all else by bytes."""

from __future__ import annotations

import math

from tofuse.cost.machine import Machine, machine_on
from tofuse.cost.nest import traffic_us
from tofuse.ir.dims import hint
from tofuse.ir.graph import Op, Value, device_of
from tofuse.ir.region import Region, lends
from tofuse.ops.table import Pattern, opdef

TRIPS = 3.0  # how often an op of several passes inside moves its operands; softmax, pooling
FEW = 3  # operands that the cost of a call includes; lists of tensors are longer
OPERAND = 0.15  # of a call, for each more; see docs/measurements.md
FRESH = 32 << 20  # bytes that malloc takes from the system each time: glibc's largest threshold


def library_us(region: Region, machine: Machine, pooled: bool = False) -> float:
    """Microseconds of a region run op by op through PyTorch; `pooled`: into memory given to it."""
    here = machine_on(device_of(region.ops), machine)
    return sum(_op_us(op, here, pooled) for op in region.ops if not _is_view(op))


def _op_us(op: Op, machine: Machine, pooled: bool) -> float:
    if op.kind == "opaque" and str(op.attr("target")).startswith("tofuse."):
        return machine.call_us * 0.5
    if lends(op):
        return machine.call_us
    calling = machine.call_us * (1 + OPERAND * max(0, len(op.inputs) - FEW))
    fresh = 0 if pooled else sum(n for v in op.results if (n := _nbytes(v)) >= FRESH)
    return calling + fresh / machine.fresh_rate / 1e3 + _running_us(op, machine)


def _running_us(op: Op, machine: Machine) -> float:
    """Beyond the call itself, in memory that is there."""
    nbytes = sum(_nbytes(v) for v in (*dict.fromkeys(op.inputs), *op.results))
    moving = traffic_us(machine, nbytes)
    if op.kind != "opaque":
        points = max((hint(v.type.numel) for v in (*op.inputs, *op.results)), default=0)
        adding = points * opdef(op.kind).cost * machine.cost("cheap") / 1e3 / machine.threads
        return max(moving, adding)
    done = _flops(op)
    if done:
        return moving + done / (machine.flops * machine.threads) / 1e3
    return TRIPS * moving


def _flops(op: Op) -> float:
    """Multiplications and additions of a product; 0 for what is none."""
    name = str(op.attr("target")).split(".")[1]
    shapes = [tuple(map(hint, v.shape)) for v in op.inputs]
    out = math.prod(map(hint, op.results[0].shape)) if op.results else 0
    match name:
        case "mm" | "bmm" | "mv" | "dot":
            return 2.0 * out * shapes[0][-1]
        case "addmm" | "baddbmm" | "addmv":
            return 2.0 * out * shapes[min(1, len(shapes) - 2)][-1]
        case "convolution" | "_convolution" | "mkldnn_convolution" if len(shapes) > 1:
            return 2.0 * out * math.prod(shapes[1][1:])
        case "convolution_backward" if len(shapes) > 2:
            grad, weight = math.prod(shapes[0]), math.prod(shapes[2][1:])
            return 2.0 * grad * weight * len(op.results)
        case _ if "attention" in name and len(shapes) > 1 and len(shapes[0]) == 4:
            per = 4.0 * math.prod(shapes[0]) * shapes[1][2]
            return per * 2.5 if "backward" in name else per
        case _:
            return 0.0


def _nbytes(v: Value) -> int:
    return hint(v.type.nbytes)


def _is_view(op: Op) -> bool:
    return opdef(op.kind).pattern in (Pattern.VIEW, Pattern.BROADCAST, Pattern.SOURCE)
