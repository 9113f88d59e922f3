"""Assign an executor to each region: a generated kernel, PyTorch, or a registered executor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tofuse.analysis.alias import is_eliminated_concat
from tofuse.cost.library import library_us
from tofuse.cost.machine import Machine
from tofuse.ir.executor import (
    KERNELS,
    LIBRARY,
    NO_EXECUTOR,
    TRITON,
    Executor,
    Executors,
    Request,
    Tensor,
)
from tofuse.ir.graph import Op, Value
from tofuse.ir.region import Region
from tofuse.ir.types import DType

ONLY_PYTORCH = "only PyTorch has this operator"
NO_KERNELS = "generated kernels are not among the executors"


@dataclass(frozen=True)
class Assignment:
    """An executor's name, the reason for it, its predicted microseconds, and it if registered."""

    name: str
    why: str
    us: float
    executor: Executor | None = None

    def label(self, op: Op) -> str:
        """Return the operator's name in a plan when this executor runs it."""
        return f"{self.name}_{op.attr('target')}".replace(".", "_")


def assign_call(
    region: Region,
    executors: Executors,
    machine: Machine,
    out_variant: Callable[[str], object | None] = lambda target: None,
) -> Assignment:
    """Assign an executor to a library region.

    `out_variant` returns None for operators that cannot write into given memory.
    """
    op = region.ops[0]
    if is_eliminated_concat(op):
        return Assignment(NO_EXECUTOR, "its operands are written directly into it", 0.0)
    pooled = out_variant(str(op.attr("target"))) is not None
    expected = library_us(region, machine, pooled)
    request = request_of(op)
    chosen, why = executors.choose(request, expected)
    if chosen is None:
        default_reason = ONLY_PYTORCH if executors.allows_kernels else NO_KERNELS
        return Assignment(LIBRARY, why or default_reason, expected)
    us = chosen.cost_us(request)
    return Assignment(chosen.name, why, expected if us is None else us, chosen)


def assign_kernel(us: float, why: str, device: str = "cpu") -> Assignment:
    """Assign a generated kernel to a region."""
    return Assignment(KERNELS if device == "cpu" else TRITON, why, us)


def assign_fallback(region: Region, reason: str, machine: Machine) -> Assignment:
    """Let PyTorch run a region op by op, as no generated kernel can or may run it."""
    return Assignment(LIBRARY, reason, library_us(region, machine))


def request_of(op: Op) -> Request:
    """Return a library call as executors see it."""
    return Request(str(op.attr("target")), tuple(map(_tensor, dict.fromkeys(op.inputs))))


def _tensor(v: Value) -> Tensor:
    shape = tuple(d if isinstance(d, int) else None for d in v.shape)
    return Tensor(shape, _DTYPE_NAMES[v.dtype], v.type.device)


_DTYPE_NAMES = {
    DType.F64: "float64",
    DType.F32: "float32",
    DType.F16: "float16",
    DType.BF16: "bfloat16",
    DType.F8E4M3: "float8_e4m3fn",
    DType.F8E5M2: "float8_e5m2",
    DType.I64: "int64",
    DType.I32: "int32",
    DType.I16: "int16",
    DType.I8: "int8",
    DType.U8: "uint8",
    DType.BOOL: "bool",
    DType.OTHER: "other",
}
