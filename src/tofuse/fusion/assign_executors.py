"""Who runs each region, and why: a kernel of ours, PyTorch, or a registered executor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tofuse.cost.library import library_us
from tofuse.cost.machine import Machine
from tofuse.ir.executor import (
    KERNELS,
    LIBRARY,
    NOTHING,
    TRITON,
    Executor,
    Executors,
    Request,
    Tensor,
)
from tofuse.ir.graph import Op, Value
from tofuse.ir.region import Region, is_placed
from tofuse.ir.types import DType

ONLY_PYTORCH = "only PyTorch has this operator"
NO_KERNELS = "our kernels are not among the executors"


@dataclass(frozen=True)
class Assignment:
    """An executor's name, the reason, microseconds predicted, and the executor if registered."""

    name: str
    why: str
    us: float
    executor: Executor | None = None

    def label(self, op: Op) -> str:
        """What a plan calls the operator when this executor runs it."""
        return f"{self.name}_{op.attr('target')}".replace(".", "_")


def assign_call(
    region: Region,
    executors: Executors,
    machine: Machine,
    pooled: Callable[[str], object | None] = lambda target: None,
) -> Assignment:
    """Who runs a library region; `pooled` answers for operators that write where they are told."""
    op = region.ops[0]
    if is_placed(op):
        return Assignment(NOTHING, "its pieces are written where it lies", 0.0)
    given = pooled(str(op.attr("target"))) is not None
    expected = library_us(region, machine, given)
    request = request_of(op)
    chosen, why = executors.choose(request, expected)
    if chosen is None:
        usual = ONLY_PYTORCH if executors.kernels else NO_KERNELS
        return Assignment(LIBRARY, why or usual, expected)
    us = chosen.price(request)
    return Assignment(chosen.name, why, expected if us is None else us, chosen)


def assign_kernel(us: float, why: str, device: str = "cpu") -> Assignment:
    """Our own kernel."""
    return Assignment(KERNELS if device == "cpu" else TRITON, why, us)


def assign_fallback(region: Region, reason: str, machine: Machine) -> Assignment:
    """PyTorch op by op, where no kernel of ours can or may run."""
    return Assignment(LIBRARY, reason, library_us(region, machine))


def request_of(op: Op) -> Request:
    """A library call as executors see it."""
    return Request(str(op.attr("target")), tuple(map(_tensor, dict.fromkeys(op.inputs))))


def _tensor(v: Value) -> Tensor:
    shape = tuple(d if isinstance(d, int) else None for d in v.shape)
    return Tensor(shape, _NAMES[v.dtype], v.type.device)


_NAMES = {
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
